package remotewrite

import "testing"

func TestCase_A01_TooOld(t *testing.T)                  { script(t, "A01") }
func TestCase_A03_RepeatedLabelName(t *testing.T)       { script(t, "A03") }
func TestCase_A04_UnsortedLabels(t *testing.T)          { script(t, "A04") }
func TestCase_A05_EmptyLabelValue(t *testing.T)         { script(t, "A05") }
func TestCase_A06_NoMetricName(t *testing.T)            { script(t, "A06") }
func TestCase_A07_OneBadSeries(t *testing.T)            { script(t, "A07") }
func TestCase_A09_Resent(t *testing.T)                  { script(t, "A09") }
func TestCase_A12_OtherValueSameTime(t *testing.T)      { script(t, "A12") }
func TestCase_A14_NaNBits(t *testing.T)                 { script(t, "A14") }
func TestCase_A15_StaleMarker(t *testing.T)             { script(t, "A15") }
func TestCase_A17_OrdinaryNaN(t *testing.T)             { script(t, "A17") }
func TestCase_A19_Future(t *testing.T)                  { script(t, "A19") }
func TestCase_A21_ZeroValueAndTime(t *testing.T)        { script(t, "A21") }
func TestCase_A22_EmptyRequests(t *testing.T)           { script(t, "A22") }
func TestCase_A24_Version2UnderTheNameOf1(t *testing.T) { script(t, "A24") }
func TestCase_A25_ContentType(t *testing.T)             { script(t, "A25") }
func TestCase_A26_ContentEncoding(t *testing.T)         { script(t, "A26") }
func TestCase_A27_FramedSnappy(t *testing.T)            { script(t, "A27") }
func TestCase_A28_DeclaredLength(t *testing.T)          { script(t, "A28") }
func TestCase_A39_NothingDroppedInSilence(t *testing.T) { script(t, "A39") }
func TestCase_A46_InvalidUTF8(t *testing.T)             { script(t, "A46") }
func TestCase_A48_Separators(t *testing.T)              { script(t, "A48") }
func TestR8_Metadata(t *testing.T)                      { script(t, "metadata") }
func TestR4_WholeRequests(t *testing.T)                 { script(t, "request") }

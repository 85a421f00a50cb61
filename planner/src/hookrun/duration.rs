//! Durations as Go writes them: `30s`, `1h30m`, `1.5m`.

use jiff::SignedDuration;

use super::Problem;

/// Reads a duration that is not negative.
pub fn parse(text: &str) -> Result<SignedDuration, Problem> {
    let wrong = || Problem(format!("{text:?} is no duration: write 30s, 5m or 1h30m"));
    let (mut total, mut rest) = (0.0_f64, text);
    if text == "0" {
        return Ok(SignedDuration::ZERO);
    }
    while !rest.is_empty() {
        let end = rest.find(|letter: char| !letter.is_ascii_digit() && letter != '.').ok_or_else(wrong)?;
        let (number, after) = rest.split_at(end);
        let number: f64 = number.parse().map_err(|_| wrong())?;
        // The longer unit first: "ms" is not minutes.
        let units = [("ns", 1e-9), ("us", 1e-6), ("µs", 1e-6), ("ms", 1e-3), ("s", 1.0), ("m", 60.0), ("h", 3600.0)];
        let (unit, seconds) = units.iter().find(|(unit, _)| after.starts_with(unit)).ok_or_else(wrong)?;
        total += number * seconds;
        rest = after.strip_prefix(unit).unwrap_or_default();
    }
    SignedDuration::try_from_secs_f64(total).ok().filter(|_| !text.is_empty() && total < 1e10).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_go_reads_them() {
        for (text, millis) in
            [("30s", 30_000), ("1h30m", 5_400_000), ("1.5m", 90_000), ("250ms", 250), ("0", 0), ("0s", 0), ("2h0m1s", 7_201_000)]
        {
            assert_eq!(parse(text).unwrap().as_millis(), millis, "{text}");
        }
        for text in ["", "30", "s", "1d", "-3s", "1..5s", "3 s", "99999999999h"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}

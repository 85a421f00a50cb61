//! Comparison of Kubernetes quantities.

/// Whether two quantities are the same amount: `1` is `1000m`, `1Gi` is `1024Mi`. A text that is not a quantity equals
/// only itself.
#[must_use]
pub fn same(one: &str, other: &str) -> bool {
    one == other || nanos(one).is_some_and(|amount| nanos(other) == Some(amount))
}

/// The amount in billionths; none if the text is not a quantity.
#[must_use]
pub fn nanos(text: &str) -> Option<i128> {
    let end = text.find(|letter: char| !(letter.is_ascii_digit() || matches!(letter, '.' | '+' | '-'))).unwrap_or(text.len());
    let (number, unit) = text.split_at_checked(end)?;
    let scale = match unit {
        "n" => 1,
        "u" => 1_000,
        "m" => 1_000_000,
        "" => NANO,
        "k" => NANO * 1_000,
        "M" => NANO * 1_000_000,
        "G" => NANO * 1_000_000_000,
        "T" => NANO * 1_000_000_000_000,
        "P" => NANO * 1_000_000_000_000_000,
        "E" => NANO * 1_000_000_000_000_000_000,
        "Ki" => NANO << 10,
        "Mi" => NANO << 20,
        "Gi" => NANO << 30,
        "Ti" => NANO << 40,
        "Pi" => NANO << 50,
        "Ei" => NANO << 60,
        exponent => NANO.checked_mul(10_i128.checked_pow(exponent.strip_prefix(['e', 'E'])?.parse().ok()?)?)?,
    };
    number.find(|letter: char| letter.is_ascii_digit())?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let whole = if whole.is_empty() { 0 } else { whole.parse::<i128>().ok()? };
    let digits = u32::try_from(fraction.len()).ok()?;
    let fraction = if fraction.is_empty() { 0 } else { fraction.parse::<i128>().ok()? };
    let below = fraction.checked_mul(scale)?.checked_div(10_i128.checked_pow(digits)?)?;
    whole.checked_mul(scale)?.checked_add(if number.starts_with('-') { -below } else { below })
}

const NANO: i128 = 1_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_compared_and_not_their_spelling() {
        for (one, other) in
            [("1", "1000m"), ("0.5", "500m"), (".5", "500m"), ("1Gi", "1024Mi"), ("1e3", "1k"), ("1.5Gi", "1536Mi"), ("100n", "0.1u")]
        {
            assert!(same(one, other), "{one} {other}");
        }
        for (one, other) in [("1", "1m"), ("1G", "1Gi"), ("many", "few"), ("", "0"), ("1e99", "1e98")] {
            assert!(!same(one, other), "{one} {other}");
        }
        assert!(same("many", "many"));
    }
}

//! Lengths of time as people write them in a registry or a settings file: `10s`, `200ms`, `24h`.

use std::time::Duration;

use jiff::SignedDuration;
use thiserror::Error;

/// Longer lengths are refused: sums of several of them must stay far inside what the clocks hold.
const MAX: Duration = Duration::from_secs(10 * 366 * 24 * 60 * 60);

/// Why a text is no length of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum DurationError {
    /// Not a number with a unit.
    #[error(
        "no length of time; expected a number with its unit, such as \"10s\", \"200ms\" or \"24h\""
    )]
    Unreadable,
    /// Zero or less.
    #[error("not above zero; expected a length of time such as \"10s\"")]
    NotPositive,
    /// Above ten years.
    #[error("longer than ten years; expected a length of time such as \"24h\"")]
    TooLong,
}

/// Reads a length of time, always with a unit and above zero.
///
/// # Errors
/// [`DurationError`] says what is wrong and what was expected; it does not repeat the text.
pub fn parse(text: &str) -> Result<Duration, DurationError> {
    let length = parse_or_zero(text)?;
    if length.is_zero() { Err(DurationError::NotPositive) } else { Ok(length) }
}

/// Reads a length of time, always with a unit; none at all is one too, such as `0s`.
///
/// # Errors
/// As [`parse`].
pub fn parse_or_zero(text: &str) -> Result<Duration, DurationError> {
    let signed: SignedDuration = text.parse().map_err(|_| DurationError::Unreadable)?;
    if signed.is_negative() {
        return Err(DurationError::NotPositive);
    }
    match Duration::try_from(signed) {
        Ok(length) if length <= MAX => Ok(length),
        Ok(_) | Err(_) => Err(DurationError::TooLong),
    }
}

/// Writes a length of time as [`parse`] reads it.
#[must_use]
pub fn show(length: Duration) -> String {
    match SignedDuration::try_from(length) {
        Ok(signed) => format!("{signed:#}"),
        Err(_) => format!("{}s", length.as_secs()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_read_with_their_unit() {
        for (text, expected) in [
            ("10s", Duration::from_secs(10)),
            ("200ms", Duration::from_millis(200)),
            ("24h", Duration::from_secs(86_400)),
            ("1h 30m", Duration::from_secs(5_400)),
            ("1m30s", Duration::from_secs(90)),
        ] {
            assert_eq!(parse(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn what_is_no_length_is_refused_with_what_was_expected() {
        for (text, expected) in [
            ("", DurationError::Unreadable),
            ("10", DurationError::Unreadable),
            ("ten seconds", DurationError::Unreadable),
            ("10 parsecs", DurationError::Unreadable),
            ("0s", DurationError::NotPositive),
            ("-5s", DurationError::NotPositive),
            ("5s ago", DurationError::NotPositive),
            ("999999999h", DurationError::TooLong),
        ] {
            assert_eq!(parse(text), Err(expected), "{text}");
        }
    }

    #[test]
    fn zero_is_a_length_only_where_it_may_be() {
        assert_eq!(parse_or_zero("0s"), Ok(Duration::ZERO));
        assert_eq!(parse_or_zero("20ms"), Ok(Duration::from_millis(20)));
        assert_eq!(parse_or_zero("-1s"), Err(DurationError::NotPositive));
        assert_eq!(parse_or_zero("0"), Err(DurationError::Unreadable));
    }

    #[test]
    fn what_is_shown_is_read_again() {
        for text in ["10s", "200ms", "24h", "1h 30m"] {
            let length = parse(text).unwrap();
            assert_eq!(parse(&show(length)), Ok(length), "{text}");
        }
        assert_eq!(show(Duration::from_secs(10)), "10s");
    }
}

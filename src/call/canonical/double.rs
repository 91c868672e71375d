//! Numbers with a fraction or an exponent: read as Python's `float`, written as its `repr`.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Why a `fmt::Result` is not handed on.
const INFALLIBLE: &str = "writing to a String cannot fail";

/// Up to this length of a spelling the standard library reads every exponent right.
///
/// It stops counting an exponent's digits from 65 536 on, which is exact only as long as no row of
/// zeros in the rest can make up for such an exponent (Rust 1.95: `0.`, 700 000 zeros, `1e700001`
/// is read as 0, and is 1).
const EXPONENT_EXACT_BYTES_MAX: usize = 60_000;

/// Two numbers of up to so many digits are never read as the same double, so that each is the only
/// one of its length, or of a shorter one, that reads back as its own.
const DIGITS_EXACT: usize = f64::DIGITS as usize;

/// Whether a number is surely spelt as Python's `repr` spells its double, as the short ones are that
/// people and models write.
pub(super) fn is_repr(spelt: &str) -> bool {
    let digits = spelt.strip_prefix('-').unwrap_or(spelt).as_bytes();
    // One byte is the point.
    if digits.len() > DIGITS_EXACT + 1 {
        return false;
    }
    let Some(point) = digits.iter().position(|byte| *byte == b'.') else { return false };
    let (whole, fraction) = (&digits[..point], &digits[point + 1..]);
    // From 1e-4 on: a number below it is written with an exponent, zero is not.
    let is_plain = whole != b"0" || fraction == b"0" || !fraction.starts_with(b"0000");
    let ends = fraction == b"0" || !fraction.ends_with(b"0");
    is_plain && ends && fraction.iter().all(u8::is_ascii_digit)
}

/// The double nearest to a number of JSON; none if that is infinity.
pub(super) fn read(spelt: &str) -> Option<f64> {
    let spelt = if spelt.len() > EXPONENT_EXACT_BYTES_MAX {
        Cow::Owned(with_small_exponent(spelt))
    } else {
        Cow::Borrowed(spelt)
    };
    spelt.parse().ok().filter(|value: &f64| value.is_finite())
}

/// The same number as `0.…e…`, its first digit after the point no zero, so that the exponent alone
/// says how large it is.
fn with_small_exponent(spelt: &str) -> String {
    let (sign, spelt) = spelt.strip_prefix('-').map_or(("", spelt), |rest| ("-", rest));
    let (mantissa, exponent) = spelt.split_once(['e', 'E']).unwrap_or((spelt, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let mut digits = String::with_capacity(spelt.len());
    digits.push_str(whole);
    digits.push_str(fraction);
    let significant = digits.trim_start_matches('0');
    let zeros = digits.len() - significant.len();
    let point = whole.len() as i64 - zeros as i64;
    // Far outside a double's range one exponent is as good as another.
    let beyond = if exponent.starts_with('-') { i64::MIN } else { i64::MAX };
    let exponent = exponent.parse().unwrap_or(beyond).saturating_add(point).clamp(-9999, 9999);
    format!("{sign}0.{significant}e{exponent}")
}

/// Writes a finite double as Python's `repr` does: the shortest digits that read back as the same
/// double, and of those the nearest to it.
///
/// Python takes the exponent form below 1e-4 and from 1e16 on, with a sign and at least two digits
/// in the exponent, and writes `.0` after an integral value otherwise.
pub(super) fn write(out: &mut String, value: f64) {
    let start = out.len();
    let is_plain = value == 0.0 || (1e-4..1e16).contains(&value.abs());
    if is_plain {
        write!(out, "{value}").expect(INFALLIBLE);
    } else {
        write!(out, "{value:e}").expect(INFALLIBLE);
    }
    if out.len() - start > TIE_DIGITS_MIN {
        settle_tie(out, start, value, is_plain);
    }
    if !is_plain {
        pad_exponent(out, start);
    } else if value.fract() == 0.0 {
        out.push_str(".0");
    }
}

/// Two spellings of the same length can be equally near to a double only from so many digits on:
/// half a unit of the last place must be within half of the gap to the next double. The point in
/// front of such a unit makes the spelling longer than that.
const TIE_DIGITS_MIN: usize = 16;

/// Puts the even one of two equally near spellings where Rust may have written the larger.
fn settle_tie(out: &mut String, start: usize, value: f64, is_plain: bool) {
    let fraction = out[start..].split_once('.').map_or("", |(_, fraction)| fraction);
    let decimals = fraction.bytes().take_while(u8::is_ascii_digit).count();
    // With its length given, a number is rounded to the nearest, and to even between two.
    let even =
        if is_plain { format!("{value:.decimals$}") } else { format!("{value:.decimals$e}") };
    // Below a power of two doubles lie closer: there the nearest may read back as another double.
    if even.parse() == Ok(value) {
        out.truncate(start);
        out.push_str(&even);
    }
}

/// From Rust's exponent, which has a sign only if it is negative and no leading zero, to Python's.
fn pad_exponent(out: &mut String, start: usize) {
    let Some(mark) = out[start..].find('e') else { return };
    let mut digits = start + mark + 1;
    if !out[digits..].starts_with('-') {
        out.insert(digits, '+');
    }
    digits += 1;
    if out.len() - digits < 2 {
        out.insert(digits, '0');
    }
}

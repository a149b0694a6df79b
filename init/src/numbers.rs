//! Numbers and durations in the words of a command line, and numbers as text.
//!
//! What is not wholly a number is none: nothing is cut, rounded or wrapped.

/// The value of decimal digits, of at least one; `None` for anything else and for more than a `u32` holds.
#[must_use]
pub fn decimal(text: &[u8]) -> Option<u32> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0u32, |value, byte| {
        let digit = byte.checked_sub(b'0').filter(|digit| *digit <= 9)?;
        value.checked_mul(10)?.checked_add(u32::from(digit))
    })
}

/// A whole number of milliseconds, seconds, minutes or hours: `500ms`, `5s`, `2m`, `1h`; without a unit, seconds, as
/// sleep(1) and timeout(1) take it. `None` for anything else and for more than a `u32` holds of milliseconds (49 days).
#[must_use]
pub fn duration(text: &[u8]) -> Option<Milliseconds> {
    let digits = text.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at_checked(digits)?;
    let milliseconds: u32 = match unit {
        b"ms" => 1,
        b"s" | b"" => 1000,
        b"m" => 60_000,
        b"h" => 3_600_000,
        _ => return None,
    };
    Some(Milliseconds(decimal(digits)?.checked_mul(milliseconds)?.into()))
}

/// A span of time, or a point in it as the span since the clock's start. Unlike `core`'s Duration it adds up without a
/// panic in the code: it saturates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Milliseconds(pub u64);

impl Milliseconds {
    /// No time at all.
    pub const ZERO: Self = Self(0);

    /// The point that lies `span` after this one.
    #[must_use]
    pub fn after(self, span: Self) -> Self {
        Self(self.0.saturating_add(span.0))
    }

    /// The span from `start` to this point; none where this one comes first.
    #[must_use]
    pub fn since(self, start: Self) -> Self {
        Self(self.0.saturating_sub(start.0))
    }
}

/// A number in decimal digits, for text without a heap.
pub struct Decimal {
    digits: [u8; Self::DIGITS_MAX],
    start: usize,
}

impl Decimal {
    /// Digits of the largest `u32`.
    const DIGITS_MAX: usize = 10;

    /// The digits of `number`, at least one.
    #[must_use]
    pub fn of(number: u32) -> Self {
        let mut decimal = Self { digits: [b'0'; Self::DIGITS_MAX], start: Self::DIGITS_MAX };
        let mut rest = number;
        for digit in decimal.digits.iter_mut().rev() {
            *digit = b'0' + (rest % 10) as u8;
            rest /= 10;
            decimal.start -= 1;
            if rest == 0 {
                break;
            }
        }
        decimal
    }

    /// The digits, most significant first.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.digits.get(self.start..).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_and_back() {
        for number in [0, 1, 9, 10, 127, 32768, 4_194_304, u32::MAX] {
            assert_eq!(Decimal::of(number).bytes(), number.to_string().as_bytes());
            assert_eq!(decimal(number.to_string().as_bytes()), Some(number));
        }
    }

    #[test]
    fn what_is_no_number() {
        for text in ["", "-1", "+1", " 1", "1 ", "1x", "0x1", "4294967296", "99999999999"] {
            assert_eq!(decimal(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn durations() {
        let cases = [
            ("5s", Some(5000)),
            ("5", Some(5000)),
            ("500ms", Some(500)),
            ("2m", Some(120_000)),
            ("1h", Some(3_600_000)),
            ("0", Some(0)),
            ("", None),
            ("s", None),
            ("1.5s", None),
            ("-1s", None),
            ("5 s", None),
            ("5S", None),
            ("50d", None),
            ("4294968s", None),
        ];
        for (text, milliseconds) in cases {
            assert_eq!(duration(text.as_bytes()), milliseconds.map(Milliseconds), "{text}");
        }
    }
}

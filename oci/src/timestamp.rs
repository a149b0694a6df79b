//! Times as image configs write them. Converts only; never asks a clock.

use std::fmt;

use crate::error::{Error, Result};

const SECONDS_A_DAY: i64 = 86_400;

/// A moment in whole seconds since 1970-01-01T00:00:00Z, at or after it: what `SOURCE_DATE_EPOCH` holds, and what a tar
/// header can. Displayed as RFC 3339 in UTC, `2021-07-01T12:30:00Z`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(u64);

/// The last second that RFC 3339 can write (9999-12-31T23:59:59Z).
const LAST: u64 = 253_402_300_799;

impl Timestamp {
    /// From seconds since the epoch.
    ///
    /// # Errors
    /// [`Error::Grammar`] after the year 9999.
    pub fn from_epoch(seconds: u64) -> Result<Self> {
        if seconds > LAST { Err(grammar(&seconds.to_string())) } else { Ok(Self(seconds)) }
    }

    /// Seconds since the epoch.
    pub fn epoch(self) -> u64 {
        self.0
    }

    /// Parses RFC 3339 section 5.6 (`date-time`); a fraction of a second is dropped, an offset is applied.
    ///
    /// # Errors
    /// [`Error::Grammar`] for anything else, and for times before 1970, such as Go's zero time in the year 1.
    pub fn parse(text: &str) -> Result<Self> {
        parse_rfc3339(text).ok_or_else(|| grammar(text))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let days = (self.0 / SECONDS_A_DAY as u64) as i64;
        let second = self.0 % SECONDS_A_DAY as u64;
        let (year, month, day) = civil_from_days(days);
        let (hours, minutes, seconds) = (second / 3600, second / 60 % 60, second % 60);
        write!(f, "{year:04}-{month:02}-{day:02}T{hours:02}:{minutes:02}:{seconds:02}Z")
    }
}

fn grammar(text: &str) -> Error {
    Error::Grammar { noun: "time", text: text.to_owned(), expected: "an RFC 3339 time between 1970 and 9999" }
}

fn parse_rfc3339(text: &str) -> Option<Timestamp> {
    let bytes = text.as_bytes();
    if bytes.len() < 20 || !text.is_ascii() {
        return None;
    }
    let punctuation = [(4, b'-'), (7, b'-'), (13, b':'), (16, b':')];
    if punctuation.iter().any(|&(at, byte)| bytes[at] != byte) || !matches!(bytes[10], b'T' | b't') {
        return None;
    }
    let number = |from: usize, to: usize| digits(&text[from..to]);
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (hours, minutes, seconds) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    if !(1..=12).contains(&month) || !(1..=days_in_month(year, month)).contains(&day) {
        return None;
    }
    // 60 is a leap second.
    if hours > 23 || minutes > 59 || seconds > 60 {
        return None;
    }
    let mut rest = &text[19..];
    if let Some(fraction) = rest.strip_prefix('.') {
        let end = fraction.find(|c: char| !c.is_ascii_digit())?;
        if end == 0 {
            return None;
        }
        rest = &fraction[end..];
    }
    let local = days_from_civil(year, month, day) * SECONDS_A_DAY + hours * 3600 + minutes * 60 + seconds;
    let utc = u64::try_from(local - offset(rest)?).ok()?;
    Timestamp::from_epoch(utc).ok()
}

/// Seconds east of Greenwich: `Z`, `+02:00` or `-05:30`.
fn offset(text: &str) -> Option<i64> {
    if matches!(text, "Z" | "z") {
        return Some(0);
    }
    let sign = match text.as_bytes().first()? {
        b'+' => 1,
        b'-' => -1,
        _ => return None,
    };
    let (hours, minutes) = text[1..].split_once(':')?;
    if hours.len() != 2 || minutes.len() != 2 {
        return None;
    }
    let (hours, minutes) = (digits(hours)?, digits(minutes)?);
    if hours > 23 || minutes > 59 { None } else { Some(sign * (hours * 3600 + minutes * 60)) }
}

fn digits(text: &str) -> Option<i64> {
    if text.bytes().all(|byte| byte.is_ascii_digit()) { text.parse().ok() } else { None }
}

fn is_leap(year: i64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

fn days_in_month(year: i64, month: i64) -> i64 {
    match month {
        4 | 6 | 9 | 11 => 30,
        2 if is_leap(year) => 29,
        2 => 28,
        _ => 31,
    }
}

/// Days from 1970-01-01 to a date of the Gregorian calendar, year 0 or later.
fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let leaps_before = |year: i64| (year - 1).div_euclid(4) - (year - 1).div_euclid(100) + (year - 1).div_euclid(400);
    let to_january = (year - 1970) * 365 + leaps_before(year) - leaps_before(1970);
    to_january + (1..month).map(|month| days_in_month(year, month)).sum::<i64>() + day - 1
}

/// The inverse of [`days_from_civil`], for 1970 to 9999.
fn civil_from_days(days: i64) -> (i64, i64, i64) {
    // 365.2425 days make a year on average, so the guess is off by one year at most.
    let mut year = 1970 + days * 400 / 146_097;
    while days_from_civil(year, 1, 1) > days {
        year -= 1;
    }
    while days_from_civil(year + 1, 1, 1) <= days {
        year += 1;
    }
    let mut rest = days - days_from_civil(year, 1, 1);
    let mut month = 1;
    while rest >= days_in_month(year, month) {
        rest -= days_in_month(year, month);
        month += 1;
    }
    (year, month, rest + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_and_prints() {
        for (text, epoch, normal) in [
            ("1970-01-01T00:00:00Z", 0, "1970-01-01T00:00:00Z"),
            ("2000-02-29T23:59:59Z", 951_868_799, "2000-02-29T23:59:59Z"),
            ("2021-07-01T14:30:00.123456789+02:00", 1_625_142_600, "2021-07-01T12:30:00Z"),
            ("2023-01-20T00:00:00-05:30", 1_674_192_600, "2023-01-20T05:30:00Z"),
            ("9999-12-31T23:59:59Z", LAST, "9999-12-31T23:59:59Z"),
        ] {
            let time = Timestamp::parse(text).unwrap();
            assert_eq!(time.epoch(), epoch, "{text}");
            assert_eq!(time.to_string(), normal);
            assert_eq!(Timestamp::parse(normal).unwrap(), time);
        }
    }

    #[test]
    fn every_day_of_four_centuries_survives() {
        for day in 0..146_097 * 2 {
            let (year, month, date) = civil_from_days(day);
            assert_eq!(days_from_civil(year, month, date), day);
        }
    }

    #[test]
    fn refuses_all_else() {
        for (bad, why) in [
            ("", "nothing"),
            ("0001-01-01T00:00:00Z", "Go's zero time"),
            ("1969-12-31T23:59:59Z", "before the epoch"),
            ("1970-01-01T00:30:00+01:00", "before the epoch in UTC"),
            ("9999-12-31T23:59:59-01:00", "after the year 9999 in UTC"),
            ("2021-02-29T00:00:00Z", "no such day"),
            ("2021-13-01T00:00:00Z", "no such month"),
            ("2021-01-01T24:00:00Z", "no such hour"),
            ("2021-01-01 00:00:00Z", "space"),
            ("2021-01-01T00:00:00", "no offset"),
            ("2021-01-01T00:00:00.Z", "empty fraction"),
            ("2021-01-01T00:00:00+0200", "offset without colon"),
            ("2021-01-01T+1:00:00Z", "signed number"),
            ("2021-01-01T00:00:00Zé", "trailing text"),
        ] {
            assert!(Timestamp::parse(bad).is_err(), "{why}: {bad:?}");
        }
    }
}

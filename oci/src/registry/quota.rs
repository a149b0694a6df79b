//! Whether a registry that turns us away means a hiccup or a quota that is used up. Spec: Docker Hub's documentation of its
//! pull limits (`ratelimit-limit: 100;w=21600`, `ratelimit-remaining: 0;w=21600`: requests, and the seconds of the window
//! in which they count). Reads answers only.

/// Words by which registries that send no such headers say so, in lower case. Others ("rate exceeded") mean haste, which a
/// pause cures.
const PHRASES: [&str; 2] = ["pull rate limit", "data limit exceeded"];

/// A quota that is used up, as far as the registry tells.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Quota {
    /// Requests.
    pub(super) limit: Option<u64>,
    /// Seconds.
    pub(super) window: Option<u64>,
}

impl Quota {
    /// What an answer 429 says of a quota, by its headers and its words; none if it is not about one.
    pub(super) fn of<'a>(header: impl Fn(&str) -> Option<&'a str>, words: &str) -> Option<Self> {
        let (limit, remaining) = (header("ratelimit-limit").map(read), header("ratelimit-remaining").map(read));
        let words = words.to_lowercase();
        let is_spent = remaining.is_some_and(|(left, _)| left == Some(0));
        if !is_spent && !PHRASES.iter().any(|phrase| words.contains(phrase)) {
            return None;
        }
        let window = limit.and_then(|(_, window)| window).or(remaining.and_then(|(_, window)| window));
        Some(Self { limit: limit.and_then(|(count, _)| count), window })
    }
}

/// `COUNT;w=SECONDS`
fn read(value: &str) -> (Option<u64>, Option<u64>) {
    let mut parts = value.split(';').map(str::trim);
    let count = parts.next().and_then(|count| count.parse().ok());
    (count, parts.find_map(|part| part.strip_prefix("w=")?.parse().ok()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f40_a_quota_is_told_from_haste() {
        let hub =
            "TOOMANYREQUESTS: You have reached your pull rate limit. You may increase the limit by authenticating";
        let spent = |limit, window| Some(Quota { limit, window });
        for (limit, remaining, words, found) in [
            (Some("100;w=21600"), Some("0;w=21600"), hub, spent(Some(100), Some(21600))),
            (Some("100;w=21600"), Some("0;w=21600"), "", spent(Some(100), Some(21600))),
            (None, Some("0 ; w=60"), "", spent(None, Some(60))),
            (Some("many"), Some("0"), "", spent(None, None)),
            (None, None, "You have reached your unauthenticated pull rate limit.", spent(None, None)),
            (None, None, "toomanyrequests: Data limit exceeded", spent(None, None)),
            (Some("100;w=21600"), Some("7;w=21600"), "TOOMANYREQUESTS", None),
            (None, None, "toomanyrequests: Rate exceeded", None),
            (None, Some("none"), "", None),
            (None, None, "", None),
        ] {
            let header = |name: &str| if name == "ratelimit-limit" { limit } else { remaining };
            assert_eq!(Quota::of(header, words), found, "{limit:?} {remaining:?} {words}");
        }
    }
}

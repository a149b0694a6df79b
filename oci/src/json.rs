//! Foreign JSON, read within bounds of depth and breadth: four megabytes of `[0],` would become several hundred as values.
//! Decides nothing about what it says, and never prints it.

use serde_json::Value;

/// How many values one document may hold; the largest images have some hundred, an index of a thousand platforms some ten
/// thousand. Each takes at most about 300 bytes beside its text.
pub(crate) const VALUES_MAX: usize = 32 * 1024;

/// Parses a JSON text (RFC 8259) of at most [`VALUES_MAX`] values and a depth of 127. The error says what is wrong with it.
pub(crate) fn parse(bytes: &[u8]) -> Result<Value, String> {
    if values(bytes) > VALUES_MAX {
        return Err(format!("expected at most {VALUES_MAX} JSON values, found more"));
    }
    // The reader has a limit of its own for the depth, so that no text makes it overflow its stack.
    serde_json::from_slice(bytes).map_err(|error| error.to_string())
}

/// At least as many as there are values: each is the first of its text, of a list or of an object, or follows a comma.
fn values(bytes: &[u8]) -> usize {
    let (mut count, mut quoted, mut escaped) = (1, false, false);
    for byte in bytes {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            b',' | b'[' | b'{' if !quoted => count += 1,
            _ => {}
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_counted_outside_of_strings() {
        for (text, count) in
            [("0", 1), (r#"{"a":1,"b":[2,3]}"#, 5), (r#"["[{,\",["]"#, 2), (r#"["\\",1]"#, 3), ("[]", 2)]
        {
            assert_eq!(values(text.as_bytes()), count, "{text}");
        }
    }

    #[test]
    fn bombs_are_refused() {
        let list = |count: usize| format!("[{}0]", "0,".repeat(count - 1));
        // The list itself is one, and one is counted for an empty list's want of a first.
        assert!(parse(list(VALUES_MAX - 2).as_bytes()).is_ok());
        for (bomb, why) in [
            (list(VALUES_MAX), "at most 32768 JSON values"),
            (format!("[{}]", vec![r#"{"":[0]}"#; VALUES_MAX].join(",")), "at most 32768 JSON values"),
            ("[".repeat(VALUES_MAX - 1), "recursion limit"),
            (r#"{"a":"#.repeat(VALUES_MAX - 1), "recursion limit"),
            ("[".repeat(4 << 20), "at most 32768 JSON values"),
        ] {
            let error = parse(bomb.as_bytes()).unwrap_err();
            assert!(error.contains(why), "{why}: {error}");
        }
    }
}

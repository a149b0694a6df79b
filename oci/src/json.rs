//! Foreign JSON, read within bounds of depth and breadth: four megabytes of `[0],` would become several hundred as values.
//! Decides nothing about what it says, and quotes no more of it than the beginning of what is no JSON.

use serde_json::Value;

/// How many values one document may hold; the largest images have some hundred, an index of a thousand platforms some ten
/// thousand. Each takes at most about 300 bytes beside its text.
pub(crate) const VALUES_MAX: usize = 32 * 1024;

/// How much of a text that is no JSON is told.
const QUOTED_CHARS_MAX: usize = 40;

/// Parses a JSON text (RFC 8259) of at most [`VALUES_MAX`] values and a depth of 127. The error says what is wrong with it.
pub(crate) fn parse(bytes: &[u8]) -> Result<Value, String> {
    if values(bytes) > VALUES_MAX {
        return Err(format!("expected at most {VALUES_MAX} JSON values, found more"));
    }
    // The reader has a limit of its own for the depth, so that no text makes it overflow its stack.
    serde_json::from_slice(bytes).map_err(|error| match bytes.trim_ascii() {
        [] => "expected JSON, found nothing".to_owned(),
        // Documents are objects: what begins otherwise is something else, such as a web page.
        text @ [first, ..] if !b"{[\"".contains(first) => {
            format!("expected JSON, found text that begins with `{}`", head(text))
        }
        _ => error.to_string(),
    })
}

/// The first characters of a foreign text, printable.
fn head(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(&text[..text.len().min(4 * QUOTED_CHARS_MAX)]);
    let mut head: String = text.chars().take(QUOTED_CHARS_MAX).map(|c| if c.is_control() { '?' } else { c }).collect();
    if text.chars().nth(QUOTED_CHARS_MAX).is_some() {
        head.push('…');
    }
    head
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
    fn what_is_no_json_is_told_by_its_beginning() {
        let page = format!("\n<html>\n\u{1b}[31m{}", "x".repeat(100));
        for (text, problem) in [
            ("", "expected JSON, found nothing"),
            (" \n", "expected JSON, found nothing"),
            ("<html>", "expected JSON, found text that begins with `<html>`"),
            (&page, "expected JSON, found text that begins with `<html>??[31mxxxxxxxxxxxxxxxxxxxxxxxxxxxx…`"),
            ("{\"a\":1", "EOF while parsing an object at line 1 column 6"),
        ] {
            assert_eq!(parse(text.as_bytes()).unwrap_err(), problem, "{text:?}");
        }
        let wide = "é".repeat(QUOTED_CHARS_MAX + 1);
        assert!(parse(wide.as_bytes()).unwrap_err().ends_with(&format!("`{}…`", "é".repeat(QUOTED_CHARS_MAX))));
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

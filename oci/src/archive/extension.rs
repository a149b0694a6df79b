//! Headers that extend the next member's: pax records (IEEE Std 1003.1, `pax`, section "pax Extended Header") and GNU's long
//! names. Parses bytes that were read already, and bounded there.

/// How pax writes an extended attribute (`star`'s and GNU tar's and Go's convention).
const XATTR: &[u8] = b"SCHILY.xattr.";

/// What extended headers say of the member that follows them.
#[derive(Default)]
pub(super) struct Extended {
    pub(super) path: Option<Vec<u8>>,
    pub(super) link: Option<Vec<u8>>,
    pub(super) size: Option<u64>,
    pub(super) uid: Option<u32>,
    pub(super) gid: Option<u32>,
    pub(super) mtime: Option<(i64, u32)>,
    pub(super) xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

/// The content of an extended header.
pub(super) struct Extension(pub(super) Vec<u8>);

impl Extension {
    /// GNU closes a long name with a NUL.
    pub(super) fn until_nul(mut self) -> Vec<u8> {
        let end = self.0.iter().position(|byte| *byte == 0).unwrap_or(self.0.len());
        self.0.truncate(end);
        self.0
    }

    /// Records of the form `LENGTH KEYWORD=VALUE\n`, where LENGTH counts the whole record.
    pub(super) fn parse_pax(self, extended: &mut Extended) -> Result<(), String> {
        let mut rest = &self.0[..];
        while !rest.is_empty() {
            let (keyword, value, after) = record(rest).ok_or("a damaged pax record")?;
            rest = after;
            let text = || String::from_utf8_lossy(value).into_owned();
            let wrong = || format!("pax {}: impossible value {:?}", String::from_utf8_lossy(keyword), text());
            match keyword {
                b"path" => extended.path = Some(value.to_vec()),
                b"linkpath" => extended.link = Some(value.to_vec()),
                b"size" => extended.size = Some(text().parse().map_err(|_| wrong())?),
                b"uid" => extended.uid = Some(text().parse().map_err(|_| wrong())?),
                b"gid" => extended.gid = Some(text().parse().map_err(|_| wrong())?),
                b"mtime" => extended.mtime = Some(pax_time(&text()).ok_or_else(wrong)?),
                _ if keyword.starts_with(b"GNU.sparse.") => return Err("sparse files are not supported".to_owned()),
                _ => {
                    if let Some(name) = keyword.strip_prefix(XATTR) {
                        extended.xattrs.push((name.to_vec(), value.to_vec()));
                    }
                }
            }
        }
        Ok(())
    }
}

/// The first pax record: keyword, value, and what follows it.
fn record(bytes: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let space = bytes.iter().position(|byte| *byte == b' ')?;
    let length: usize = std::str::from_utf8(&bytes[..space]).ok()?.parse().ok()?;
    let body = bytes.get(space + 1..length)?.strip_suffix(b"\n")?;
    let equals = body.iter().position(|byte| *byte == b'=')?;
    Some((&body[..equals], &body[equals + 1..], &bytes[length..]))
}

/// `SECONDS[.FRACTION]`, perhaps negative.
fn pax_time(text: &str) -> Option<(i64, u32)> {
    let (seconds, fraction) = text.split_once('.').unwrap_or((text, ""));
    if !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let nanoseconds: u32 = format!("{fraction:0<9.9}").parse().ok()?;
    let whole: i64 = seconds.parse().ok()?;
    match (seconds.starts_with('-'), nanoseconds) {
        // The kernel counts nanoseconds upwards only.
        (true, 1..) => Some((whole.checked_sub(1)?, 1_000_000_000 - nanoseconds)),
        _ => Some((whole, nanoseconds)),
    }
}

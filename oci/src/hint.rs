//! What a person can do about an [`Error`]: one sentence each, for a `hint:` line. Knows the words of this library and no command
//! line; never repeats what the error says.

use std::io;

use rustix::io::Errno;

use crate::error::{CA_AS_SERVER, Error};

/// The hint where plain http finds somebody who does not speak it.
const SPEAKS_HTTPS: &str = "it was spoken to over plain http: if it speaks https, name the host secure";

impl Error {
    /// What a person can do about it, if there is something: one sentence without a period, for a `hint:` line.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Grammar { noun: "tagged reference", .. } => Some("write the tag or digest out; none is assumed"),
            Self::PlainHttp { .. } => Some("name the host insecure and not secure, or use https"),
            Self::Userinfo { .. } => {
                Some("log in instead (docker login HOST): passwords are read from Docker's config.json")
            }
            Self::Cut { request, .. } if is_plain(request) => Some(SPEAKS_HTTPS),
            // Servers of https say so to plain http, but not in a registry's form.
            Self::Refused { request, status: 400, answer, .. } if is_plain(request) && answer.is_empty() => {
                Some(SPEAKS_HTTPS)
            }
            Self::Realm { .. } => Some("if the token server is the registry's own, list it among the realms"),
            // Harbor and others forbid what would not fit any more; who asks has every right.
            Self::Unauthorized { answer, .. } if answer.to_lowercase().contains("quota") => {
                Some("free some space in the registry, or have its quota raised")
            }
            Self::Unauthorized { .. } => {
                Some("log in (docker login HOST keeps what is read here), or ask for the right to the repository")
            }
            Self::Refused { status: 405, .. } => Some("the registry takes nothing: it is read-only, or a cache"),
            Self::Unreachable { .. } | Self::TokenServer { .. } => {
                Some("check the name, the network, and the proxies that the environment names (HTTPS_PROXY, NO_PROXY)")
            }
            Self::Untrusted { reason, .. } if reason == CA_AS_SERVER => Some(
                "give the registry a certificate that a CA signed for it, or one with basicConstraints=CA:FALSE, and trust that",
            ),
            Self::Untrusted { .. } => {
                Some("check the CA certificates of this machine (Debian: ca-certificates), or name the registry's own")
            }
            Self::Quota { .. } => {
                Some("wait for the quota's next window, log in to the registry, or name a mirror of it")
            }
            Self::Mirrored { origin, mirrors } => origin.hint().or_else(|| mirrors.iter().find_map(Self::hint)),
            Self::Io { source, .. } if source.kind() == io::ErrorKind::StorageFull => Some("free some disk space"),
            // An operation that this user may do nowhere, or a file that is not this user's (errno(3)).
            Self::Io { source, .. } if is_errno(source, Errno::PERM) => Some("owners and device nodes need root"),
            Self::Io { source, .. } if is_errno(source, Errno::ACCESS) => {
                Some("the user who runs this must be allowed to use that file and its folder; ls -l shows who is")
            }
            Self::DigestMismatch { .. } | Self::SizeMismatch { .. } => {
                Some("the source is damaged or was tampered with; fetch it again or from elsewhere")
            }
            _ => None,
        }
    }
}

fn is_errno(error: &io::Error, errno: Errno) -> bool {
    error.raw_os_error() == Some(errno.raw_os_error())
}

/// Whether a request, verb and URL, went over plain http.
fn is_plain(request: &str) -> bool {
    request.split_once(' ').is_some_and(|(_, url)| url.starts_with("http://"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_of_the_system_is_told_by_its_kind() {
        for (errno, hint) in
            [(Errno::PERM, "need root"), (Errno::ACCESS, "must be allowed"), (Errno::NOSPC, "disk space")]
        {
            let error = Error::io("read credentials config.json")(errno.into());
            assert!(error.hint().is_some_and(|found| found.contains(hint)), "{errno:?}: {:?}", error.hint());
        }
        assert_eq!(Error::io("read it")(Errno::IO.into()).hint(), None);
    }

    #[test]
    fn a_quota_is_no_question_of_rights() {
        for (answer, hint) in [("DENIED: Quota exceeded", "free some space"), ("DENIED", "log in"), ("", "log in")] {
            let error = Error::Unauthorized { request: "PUT http://x".to_owned(), answer: answer.to_owned() };
            assert!(error.hint().is_some_and(|found| found.starts_with(hint)), "{answer}: {:?}", error.hint());
        }
    }

    #[test]
    fn plain_http_that_breaks_is_told_of_https() {
        for (scheme, hint) in [("http", Some(SPEAKS_HTTPS)), ("https", None)] {
            let request = format!("GET {scheme}://127.0.0.1:6443/v2/x");
            let cut = Error::Cut { request: request.clone(), reason: "closed".to_owned() };
            let refused = |answer: &str| {
                let (request, answer) = (request.clone(), answer.to_owned());
                Error::Refused { request, expected: vec![200], status: 400, answer }
            };
            assert_eq!((cut.hint(), refused("").hint(), refused("MANIFEST_INVALID").hint()), (hint, hint, None));
        }
    }
}

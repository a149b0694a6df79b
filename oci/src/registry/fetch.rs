//! One blob on its way out of one place. Spec: distribution-spec, section "Pulling blobs"; RFC 9110, section 14 (`Range`,
//! `Content-Range`). A transfer that is cut goes on where it was, with the hash of what came so far; it begins anew where
//! the place does not give the rest. Never gives a blob its name unverified.

use reqwest::header::{ACCEPT, CONTENT_RANGE, HeaderValue, RANGE};
use reqwest::{Method, Url};

use super::answer::{Answer, Failure};
use super::auth::Access;
use super::patience::PROGRESS_BYTES;
use super::transport::{Request, Transport};
use crate::descriptor::Descriptor;
use crate::error::{Error, Result};
use crate::layout::{Expected, Layout};
use crate::progress::Progress;

/// What is fetched, and what came of it so far.
pub(super) struct Fetching<'a> {
    transport: &'a Transport,
    url: &'a Url,
    access: &'a Access,
    blob: &'a Descriptor,
    layout: &'a Layout,
    progress: &'a dyn Progress,
    /// What came so far, none at the beginning; not all of it in one transfer if `joined`.
    begun: Option<Expected>,
    joined: bool,
    /// The most that any attempt had.
    furthest: u64,
    /// Whether to ask for the rest only; not where that went wrong.
    ranges: bool,
}

impl<'a> Fetching<'a> {
    pub(super) fn new(
        transport: &'a Transport,
        url: &'a Url,
        access: &'a Access,
        blob: &'a Descriptor,
        layout: &'a Layout,
        progress: &'a dyn Progress,
    ) -> Self {
        let (begun, joined, furthest, ranges) = (None, false, 0, true);
        Self { transport, url, access, blob, layout, progress, begun, joined, furthest, ranges }
    }

    /// Fetches what is missing, and gives the blob its name. After a failure that is not final it goes on when called again.
    pub(super) async fn attempt(&mut self) -> Result<(), Failure> {
        let (mut answer, mut begun) = self.open().await?;
        let result = match self.take(&mut answer, &mut begun).await {
            Ok(()) => begun.finish().map_err(|error| error.sent_by(answer.request()).into()),
            Err(Failure::Again { error, after }) => {
                let further = begun.count() >= self.furthest + PROGRESS_BYTES;
                self.furthest = self.furthest.max(begun.count());
                self.begun = Some(begun);
                Err(if further { Failure::Further(error) } else { Failure::Again { error, after } })
            }
            failure => failure,
        };
        match result {
            // Parts that do not make the blob may come from several servers behind one name: once more, in one piece.
            Err(Failure::Final(error @ (Error::SizeMismatch { .. } | Error::DigestMismatch { .. }))) if self.joined => {
                self.ranges = false;
                Err(Failure::Again { error, after: None })
            }
            result => result,
        }
    }

    /// An answer with what is missing, and what is there of the blob, which is nothing if the answer has all of it.
    async fn open(&mut self) -> Result<(Answer, Expected), Failure> {
        let request =
            || Request::new(Method::GET, self.url, self.access).header(ACCEPT, HeaderValue::from_static("*/*"));
        let from = self.begun.as_ref().map_or(0, Expected::count);
        if from > 0 && self.ranges {
            let range = HeaderValue::try_from(format!("bytes={from}-")).expect("a number is ASCII");
            let rest = Request { accepted: &[200, 206, 416], ..request().header(RANGE, range) };
            let answer = self.transport.send(&rest).await?;
            match (answer.status(), self.begun.take()) {
                (206, Some(begun)) if continues(answer.header(CONTENT_RANGE.as_str()), from, self.blob.size) => {
                    answer.must_claim(self.blob.digest)?;
                    self.joined = true;
                    return Ok((answer, begun));
                }
                (200, _) => return Ok(self.anew(answer)?),
                _ => self.ranges = false,
            }
        }
        let answer = self.transport.send(&request()).await?;
        Ok(self.anew(answer)?)
    }

    fn anew(&mut self, answer: Answer) -> Result<(Answer, Expected)> {
        if let Some(found) = answer.length().filter(|length| *length != self.blob.size) {
            let subject = answer.request().to_owned();
            return Err(Error::SizeMismatch { subject, expected: self.blob.size, found });
        }
        answer.must_claim(self.blob.digest)?;
        self.joined = false;
        self.progress.reached(self.blob, 0);
        Ok((answer, self.layout.expect(self.blob)?))
    }

    async fn take(&self, answer: &mut Answer, begun: &mut Expected) -> Result<(), Failure> {
        loop {
            match answer.chunk().await {
                Ok(Some(chunk)) => {
                    self.transport.check_interrupt()?;
                    begun.write(&chunk).map_err(|error| error.sent_by(answer.request()))?;
                    self.progress.reached(self.blob, begun.count());
                }
                Err(failure) if begun.count() < self.blob.size => return Err(failure),
                // A body of unknown length, or a part, that ends early: the connection was cut, or the rest is to be asked for.
                Ok(None) if begun.count() < self.blob.size => {
                    let (subject, found) = (answer.request().to_owned(), begun.count());
                    let error = Error::SizeMismatch { subject, expected: self.blob.size, found };
                    return Err(Failure::Again { error, after: None });
                }
                Ok(None) | Err(_) => return Ok(()),
            }
        }
    }
}

/// Whether a `Content-Range` (RFC 9110, section 14.4) is that of the bytes of a blob that begin at `from`; it may end before
/// the blob does.
fn continues(content_range: Option<&str>, from: u64, size: u64) -> bool {
    let parse = |text: &str| -> Option<bool> {
        let (range, total) = text.trim().strip_prefix("bytes ")?.split_once('/')?;
        let (first, last) = range.split_once('-')?;
        let total_fits = total == "*" || total.parse() == Ok(size);
        Some(
            total_fits
                && first.parse() == Ok(from)
                && last.parse::<u64>().is_ok_and(|last| (from..size).contains(&last)),
        )
    };
    content_range.and_then(parse).unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f38_a_content_range_fits_or_does_not() {
        for (text, fits) in [
            ("bytes 5-15/16", true),
            ("bytes 5-15/*", true),
            ("bytes 5-9/16", true),
            ("bytes 5-5/16", true),
            ("bytes 0-15/16", false),
            ("bytes 4-15/16", false),
            ("bytes 6-15/16", false),
            ("bytes 5-15/17", false),
            ("bytes 5-16/16", false),
            ("bytes 5-4/16", false),
            ("bytes */16", false),
            ("bytes=5-15/16", false),
            ("items 5-15/16", false),
            ("5-15", false),
            ("", false),
        ] {
            assert_eq!(continues(Some(text), 5, 16), fits, "{text}");
        }
        assert!(!continues(None, 5, 16));
    }
}

//! The body of an upload: a section of a file, read anew for each attempt. Never holds more of it than a chunk.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use futures_core::Stream;

/// How much is read at a time.
const CHUNK_BYTES: usize = 64 * 1024;

/// What a request carries.
pub(super) enum Body<'a> {
    /// Nothing.
    Empty,
    /// A document.
    Bytes(&'a [u8]),
    /// Part of a blob; the function is told how many bytes of it were handed to the network.
    Section(&'a Section, &'a dyn Fn(u64)),
}

/// `length` bytes of a file, from `start`.
pub(super) struct Section {
    pub(super) path: PathBuf,
    pub(super) start: u64,
    pub(super) length: u64,
}

impl Body<'_> {
    /// Bytes.
    pub(super) fn length(&self) -> u64 {
        match self {
            Self::Empty => 0,
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::Section(section, _) => section.length,
        }
    }

    /// The body for one attempt, which counts in `sent` what the network takes of it.
    pub(super) fn open(&self, sent: &Arc<AtomicU64>) -> io::Result<reqwest::Body> {
        Ok(match self {
            Self::Empty => reqwest::Body::default(),
            Self::Bytes(bytes) => bytes.to_vec().into(),
            Self::Section(section, _) => {
                let mut file = File::open(&section.path)?;
                file.seek(SeekFrom::Start(section.start))?;
                reqwest::Body::wrap_stream(Chunks { file, left: section.length, sent: Arc::clone(sent) })
            }
        })
    }

    pub(super) fn report(&self, sent: u64) {
        if let Self::Section(_, report) = self {
            report(sent);
        }
    }
}

struct Chunks {
    file: File,
    left: u64,
    sent: Arc<AtomicU64>,
}

impl Stream for Chunks {
    type Item = io::Result<Vec<u8>>;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut chunk = Vec::with_capacity(CHUNK_BYTES);
        let wanted = self.left.min(CHUNK_BYTES as u64);
        let read = (&mut self.file).take(wanted).read_to_end(&mut chunk);
        let count = chunk.len() as u64;
        self.left -= count;
        self.sent.fetch_add(count, Ordering::Relaxed);
        Poll::Ready(match read {
            Err(error) => Some(Err(error)),
            // At the end, or where the file is shorter than it was: the promised length then tells.
            Ok(0) => None,
            Ok(_) => Some(Ok(chunk)),
        })
    }
}

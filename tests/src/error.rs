//! What can go wrong while a container is judged, told apart by who must act on it: the image misbehaved, the engine
//! could not do its work, or a person pressed Ctrl-C. It must never hold a judgement: that is the verdict's.

use std::time::Duration;
use std::{fmt, io};

/// The suite's error. Only [`Error::Image`] says something about the image; all others leave it unjudged.
#[derive(Debug)]
pub enum Error {
    /// Ctrl-C, or a caller that gave up.
    Interrupted,
    /// The image did not do what every image must: its daemon never answered, an inner container did not run.
    Image(String),
    /// The image lacks what a case is about; the text says what. The case is skipped, not failed.
    Inapplicable(String),
    /// A state did not come within its deadline, and it is not known whether the image or the machine is to blame.
    Deadline {
        /// What was waited for.
        awaited: String,
        /// The deadline.
        limit: Duration,
    },
    /// The engine could not do its part; the text names what and why.
    Engine(String),
    /// A file, process or group could not be worked on.
    Io {
        /// Verb and object, as in `remove /sys/fs/cgroup/pids/x`.
        action: String,
        /// The reason.
        source: io::Error,
    },
}

impl Error {
    /// For `map_err`: keeps what was being done beside the reason.
    pub(crate) fn io(action: impl Into<String>) -> impl FnOnce(io::Error) -> Error {
        let action = action.into();
        move |source| Error::Io { action, source }
    }
}

impl From<oci::Error> for Error {
    fn from(error: oci::Error) -> Error {
        match error {
            oci::Error::Interrupted => Error::Interrupted,
            other => Error::Engine(other.to_string()),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Interrupted => write!(f, "interrupted"),
            Error::Image(message) | Error::Inapplicable(message) | Error::Engine(message) => write!(f, "{message}"),
            Error::Deadline { awaited, limit } => {
                write!(f, "wait for {awaited}: expected within {} s, found nothing", limit.as_secs())
            }
            Error::Io { action, .. } => write!(f, "{action}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}

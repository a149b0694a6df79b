//! A pseudo-terminal (pty(7)) for containers that want one. It must never become the suite's own controlling terminal.

use crate::Error;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Mutex;

const OUTPUT_BYTES_MAX: usize = 1 << 20;

/// The suite's end: types, and keeps what was shown.
#[derive(Debug)]
pub(crate) struct Terminal {
    master: File,
    shown: Mutex<Vec<u8>>,
}

impl Terminal {
    /// A fresh terminal, and the end that becomes the container's standard streams.
    pub(crate) fn open() -> Result<(Terminal, File), Error> {
        let fault = |errno: Errno| Error::io("open a terminal")(errno.into());
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).map_err(fault)?;
        grantpt(&master).map_err(fault)?;
        unlockpt(&master).map_err(fault)?;
        let name = ptsname(&master, Vec::new()).map_err(fault)?.to_string_lossy().into_owned();
        let flags = fcntl_getfl(&master).map_err(fault)?;
        fcntl_setfl(&master, flags | OFlags::NONBLOCK).map_err(fault)?;
        let no_controlling_terminal = OFlags::NOCTTY.bits().cast_signed();
        let slave = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(no_controlling_terminal)
            .open(&name)
            .map_err(Error::io(format!("open {name}")))?;
        Ok((Terminal { master: File::from(master), shown: Mutex::default() }, slave))
    }

    pub(crate) fn type_in(&self, keys: &[u8]) -> Result<(), Error> {
        (&self.master).write_all(keys).map_err(Error::io("type into the terminal"))
    }

    /// All that was shown so far, at most [`OUTPUT_BYTES_MAX`] bytes of it.
    pub(crate) fn shown(&self) -> Result<String, Error> {
        let mut shown =
            self.shown.lock().map_err(|_| Error::Engine("read the terminal: a reader panicked".to_owned()))?;
        let mut chunk = [0; 4096];
        while shown.len() < OUTPUT_BYTES_MAX {
            match (&self.master).read(&mut chunk) {
                Ok(0) => break,
                Ok(length) => shown.extend_from_slice(&chunk[..length]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                // EIO: no process holds the other end any more (pty(7)), which is how a terminal ends.
                Err(error) if error.raw_os_error() == Some(Errno::IO.raw_os_error()) => break,
                Err(error) => return Err(Error::io("read the terminal")(error)),
            }
        }
        Ok(String::from_utf8_lossy(&shown).into_owned())
    }
}

//! Files that several runs share: written whole or not at all, and worked on in turn. Knows nothing of what they hold.

use std::fs::{self, File, TryLockError};
use std::io::{Read, Write};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use oci::Interrupt;

/// How long between two looks whether another run has ended.
const LOCK_INTERVAL: Duration = Duration::from_millis(100);

/// Writes a file beside its place and renames it into it: a reader finds the old bytes or the new ones. Error: the disk is full, or
/// the folder cannot be written; then the old bytes stay.
pub fn write_whole(path: &Path, bytes: &[u8]) -> Result<()> {
    write_whole_from(path, |file| Ok(file.write_all(bytes)?))
}

/// The same for what is too large to be held in memory: `write` is given the empty file. Error: that of `write` too; then the old bytes
/// stay.
pub fn write_whole_from(path: &Path, write: impl FnOnce(&mut File) -> Result<()>) -> Result<()> {
    let mut name = path.file_name().context("write a file: it has no name")?.to_owned();
    name.push(".new");
    let temporary = path.with_file_name(name);
    let create = || {
        let mut file = File::create(&temporary)?;
        write(&mut file)?;
        file.sync_all()?;
        Ok(fs::rename(&temporary, path)?)
    };
    let written: Result<()> = create();
    if written.is_err() {
        // What is half-written helps nobody; that it may be missing already is no further fault.
        let _ = fs::remove_file(&temporary);
    }
    written.with_context(|| format!("write {}", path.display()))
}

/// Reads a small text file. Error: it is no regular file (a FIFO or a device would be read for ever), is larger than `max` bytes, or is
/// not UTF-8; the source of an absent file is the [`std::io::Error`].
pub fn read_text(path: &Path, max: u64) -> Result<String> {
    let found = fs::metadata(path).with_context(|| format!("read {}", path.display()))?;
    ensure!(
        found.is_file(),
        "read {}: expected a regular file, found {}",
        path.display(),
        if found.is_dir() { "a folder" } else { "a pipe, socket or device" }
    );
    let mut text = String::new();
    let file = File::open(path).with_context(|| format!("read {}", path.display()))?;
    file.take(max + 1).read_to_string(&mut text).with_context(|| format!("read {}", path.display()))?;
    ensure!(text.len() as u64 <= max, "read {}: expected at most {max} bytes, found more", path.display());
    Ok(text)
}

/// Waits until no other run holds the lock file, and holds it until the returned file is dropped; the kernel drops it for a killed run.
/// `waiting` is called once if there is somebody to wait for. Error: the file cannot be made or locked, or the interrupt was raised.
pub fn take_turn(lock: &Path, interrupt: &Interrupt, waiting: &mut dyn FnMut()) -> Result<File> {
    let file = File::create(lock).with_context(|| format!("make {}", lock.display()))?;
    let mut told = false;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) if !told => {
                waiting();
                told = true;
            }
            Err(TryLockError::WouldBlock) => std::thread::sleep(LOCK_INTERVAL),
            Err(TryLockError::Error(error)) => return Err(error).with_context(|| format!("lock {}", lock.display())),
        }
        interrupt.check()?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_that_fails_keeps_the_old_bytes_and_leaves_no_file() {
        let folder = tempfile::tempdir().expect("make a folder");
        let path = folder.path().join("record");
        write_whole(&path, b"old").expect("write");
        // A folder in the way of the temporary file.
        fs::create_dir(folder.path().join("record.new")).expect("make a folder");
        let error = format!("{:#}", write_whole(&path, b"new").expect_err("the way is blocked"));
        assert!(error.contains("write ") && error.contains("record"), "{error}");
        assert_eq!(fs::read(&path).expect("read"), b"old");

        fs::remove_dir(folder.path().join("record.new")).expect("remove the folder");
        let half = |file: &mut File| {
            file.write_all(b"half")?;
            anyhow::bail!("the source is damaged")
        };
        let error = format!("{:#}", write_whole_from(&path, half).expect_err("it ends half-way"));
        assert!(error.contains("record: the source is damaged"), "{error}");
        assert_eq!(fs::read(&path).expect("read"), b"old");
        assert_eq!(fs::read_dir(folder.path()).expect("list").count(), 1);
    }

    #[test]
    fn a_turn_waits_for_its_holder_and_hears_the_interrupt() {
        let folder = tempfile::tempdir().expect("make a folder");
        let lock = folder.path().join("lock");
        let holder = take_turn(&lock, &Interrupt::default(), &mut || panic!("nobody to wait for")).expect("lock");
        let interrupt = Interrupt::default();
        let raise = interrupt.clone();
        let waited = take_turn(&lock, &interrupt, &mut || raise.raise());
        assert!(waited.is_err(), "two runs had one turn");
        drop(holder);
        take_turn(&lock, &Interrupt::default(), &mut || panic!("the lock was not dropped")).expect("lock");
    }
}

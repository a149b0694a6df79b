//! Files that several runs share: written whole or not at all, and worked on in turn. Knows nothing of what they hold.

use std::fs::{self, File, TryLockError};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use oci::Interrupt;

/// How long between two looks whether another run has ended.
const LOCK_INTERVAL: Duration = Duration::from_millis(100);

/// How long one run may take to write a shared file: an archive has hundreds of megabytes.
const WRITER_TIMEOUT: Duration = Duration::from_secs(120);
/// How long between two looks whether another run has written it.
const WRITER_INTERVAL: Duration = Duration::from_millis(10);

/// Writes a file beside its place and renames it into it: a reader finds the old bytes or the new ones. Error: the disk is full, or
/// the folder cannot be written; then the old bytes stay.
pub fn write_whole(path: &Path, bytes: &[u8]) -> Result<()> {
    write_whole_from(path, |file| Ok(file.write_all(bytes)?))
}

/// The same for what is too large to be held in memory: `write` is given the empty file. Error: that of `write` too; then the old bytes
/// stay.
pub fn write_whole_from(path: &Path, write: impl FnOnce(&mut File) -> Result<()>) -> Result<()> {
    let create = || {
        let mut draft = Draft::begin(path)?;
        write(&mut draft.file)?;
        draft.file.sync_all()?;
        Ok(fs::rename(&draft.place, path)?)
    };
    let written: Result<()> = create();
    written.with_context(|| format!("write {}", path.display()))
}

/// Error: [`write_whole`] could not write this file.
pub fn check_writable(path: &Path) -> Result<()> {
    ensure!(!path.is_dir(), "write {}: expected a file or nothing in its place, found a folder", path.display());
    Draft::begin(path).map(drop).with_context(|| format!("write {}", path.display()))
}

/// The file beside another one in which that is made. One writer at a time has it, so that none renames another's away; what a killed
/// one left is taken over. It goes with its guard, unless it was renamed.
struct Draft {
    place: PathBuf,
    file: File,
}

impl Draft {
    /// Waits for its turn. Error: the folder cannot be written, or somebody writes for longer than [`WRITER_TIMEOUT`].
    fn begin(path: &Path) -> Result<Self> {
        let mut name = path.file_name().context("it has no name")?.to_owned();
        name.push(".new");
        let place = path.with_file_name(name);
        let deadline = Instant::now() + WRITER_TIMEOUT;
        loop {
            let file = File::options().write(true).create(true).truncate(false).open(&place)?;
            match file.try_lock() {
                // Whoever had it before may have renamed or removed it since it was opened here.
                Ok(()) if is_at(&file, &place)? => {
                    file.set_len(0)?;
                    return Ok(Self { place, file });
                }
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => std::thread::sleep(WRITER_INTERVAL),
                Err(TryLockError::Error(error)) => return Err(error.into()),
            }
            ensure!(Instant::now() < deadline, "another run has been writing it for {WRITER_TIMEOUT:?}");
        }
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        // Ours as long as it is locked. What is half-written helps nobody; that it was renamed already is no fault.
        if is_at(&self.file, &self.place).is_ok_and(|ours| ours) {
            let _ = fs::remove_file(&self.place);
        }
    }
}

/// Whether the name is that of the open file still.
fn is_at(file: &File, place: &Path) -> std::io::Result<bool> {
    let open = file.metadata()?;
    match fs::symlink_metadata(place) {
        Ok(named) => Ok((named.dev(), named.ino()) == (open.dev(), open.ino())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
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
    fn many_write_one_file_at_once() {
        let folder = tempfile::tempdir().expect("make a folder");
        let path = folder.path().join("record");
        std::thread::scope(|scope| {
            let bytes = (0..8_u8).map(|writer| vec![writer; 4096]);
            let writers: Vec<_> = bytes
                .map(|bytes| scope.spawn(|| (0..20).try_for_each(|_| write_whole(&path, &bytes)).map(|()| bytes)))
                .collect();
            let written: Vec<_> = writers.into_iter().map(|writer| writer.join().expect("no panic")).collect();
            let written: Result<Vec<_>> = written.into_iter().collect();
            assert!(written.expect("each writes").contains(&fs::read(&path).expect("read")), "a mixture");
        });
        assert_eq!(fs::read_dir(folder.path()).expect("list").count(), 1);
        // What a killed run left is in nobody's way, and is not kept.
        fs::write(folder.path().join("record.new"), vec![9; 8192]).expect("write");
        write_whole(&path, b"new").expect("write");
        assert_eq!(fs::read(&path).expect("read"), b"new");
        assert_eq!(fs::read_dir(folder.path()).expect("list").count(), 1);
    }

    #[test]
    fn whether_a_file_can_be_written_is_told_without_writing_it() {
        let folder = tempfile::tempdir().expect("make a folder");
        let path = folder.path().join("record");
        check_writable(&path).expect("it can");
        assert_eq!(fs::read_dir(folder.path()).expect("list").count(), 0);
        fs::create_dir(&path).expect("make a folder");
        let error = format!("{:#}", check_writable(&path).expect_err("a folder"));
        assert!(error.contains("found a folder"), "{error}");
        let error = format!("{:#}", check_writable(&folder.path().join("none/record")).expect_err("no folder"));
        assert!(error.contains("none/record") && error.contains("No such file"), "{error}");
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

//! Reads a procfs (proc(5)) and prints what it sees as JSON: the process table, and one process's signal state and open
//! files. Given the procfs of a container, pids are the container's own. It must never interpret: counting is the suite's.

use crate::Outcome;
use serde::Serialize;
use std::fs;
use std::io::{ErrorKind, Read};
use std::path::Path;
use std::process::ExitCode;

const STAT_BYTES_MAX: u64 = 16 << 10;

#[derive(Serialize, Debug, PartialEq)]
struct Process {
    pid: i32,
    ppid: i32,
    /// One letter, as in proc_pid_stat(5): `Z` is a zombie.
    state: char,
    comm: String,
    threads: u64,
    /// Clock ticks after boot; with the pid it names a process for good.
    start: u64,
}

pub(crate) fn print_processes(proc: &Path) -> Outcome {
    let mut processes = Vec::new();
    let entries = fs::read_dir(proc).map_err(|error| format!("list {}: {error}", proc.display()))?;
    for entry in entries {
        let name = entry.map_err(|error| format!("list {}: {error}", proc.display()))?.file_name();
        if name.to_string_lossy().bytes().all(|byte| byte.is_ascii_digit()) {
            // A process may end between the listing and the reading: then it is not in the table.
            if let Some(stat) = read_live(&proc.join(name).join("stat"))? {
                processes.push(parse_stat(&stat).ok_or_else(|| format!("parse stat: found `{stat}`"))?);
            }
        }
    }
    processes.sort_by_key(|process| process.pid);
    print_json(&processes)
}

/// The file's text, or `None` where its process has ended meanwhile.
fn read_live(path: &Path) -> Result<Option<String>, String> {
    let mut bytes = Vec::new();
    let read = fs::File::open(path).and_then(|file| file.take(STAT_BYTES_MAX).read_to_end(&mut bytes));
    match read {
        Ok(_) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
        // ESRCH (3): the process went away after the file had been opened.
        Err(error) if error.kind() == ErrorKind::NotFound || error.raw_os_error() == Some(3) => Ok(None),
        Err(error) => Err(format!("read {}: {error}", path.display())),
    }
}

/// comm stands in parentheses and may hold any byte, a `)` too, so its end is the last one.
fn parse_stat(stat: &str) -> Option<Process> {
    let (head, tail) = stat.rsplit_once(')')?;
    let (pid, comm) = head.split_once('(')?;
    let fields: Vec<&str> = tail.split_whitespace().collect();
    Some(Process {
        pid: pid.trim().parse().ok()?,
        comm: comm.to_owned(),
        state: fields.first()?.chars().next()?,
        ppid: fields.get(1)?.parse().ok()?,
        threads: fields.get(17)?.parse().ok()?,
        start: fields.get(19)?.parse().ok()?,
    })
}

#[derive(Serialize)]
struct Status {
    exe: String,
    cmdline: Vec<String>,
    /// Hexadecimal masks, as in proc_pid_status(5).
    blocked: String,
    ignored: String,
    caught: String,
    files: Vec<OpenFile>,
}

#[derive(Serialize)]
struct OpenFile {
    fd: i32,
    target: String,
}

pub(crate) fn print_status(proc: &Path, pid: &str) -> Outcome {
    let home = proc.join(pid);
    let read = |name: &str| {
        let path = home.join(name);
        fs::read_to_string(&path).map_err(|error| format!("read {}: {error}", path.display()))
    };
    let status = read("status")?;
    let mask = |key: &str| status.lines().find_map(|line| line.strip_prefix(key)).unwrap_or_default().trim().to_owned();
    let mut files = Vec::new();
    let fds = home.join("fd");
    for entry in fs::read_dir(&fds).map_err(|error| format!("list {}: {error}", fds.display()))? {
        let entry = entry.map_err(|error| format!("list {}: {error}", fds.display()))?;
        if let (Ok(fd), Ok(target)) = (entry.file_name().to_string_lossy().parse(), fs::read_link(entry.path())) {
            files.push(OpenFile { fd, target: target.display().to_string() });
        }
    }
    files.sort_by_key(|file| file.fd);
    print_json(&Status {
        exe: fs::read_link(home.join("exe")).map(|path| path.display().to_string()).unwrap_or_default(),
        cmdline: read("cmdline")?.split_terminator('\0').map(str::to_owned).collect(),
        blocked: mask("SigBlk:"),
        ignored: mask("SigIgn:"),
        caught: mask("SigCgt:"),
        files,
    })
}

fn print_json(value: &impl Serialize) -> Outcome {
    println!("{}", serde_json::to_string(value).map_err(|error| format!("write JSON: {error}"))?);
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comm_with_spaces_and_parentheses_is_kept() {
        let stat = "42 (a) b (c) Z 1 42 42 0 -1 4194304 0 0 0 0 0 0 0 0 20 0 3 0 777 0 0";
        let expected = Process { pid: 42, ppid: 1, state: 'Z', comm: "a) b (c".to_owned(), threads: 3, start: 777 };
        assert_eq!(parse_stat(stat), Some(expected));
    }

    #[test]
    fn a_cut_line_is_refused() {
        assert_eq!(parse_stat("42 (x) Z 1"), None);
    }
}

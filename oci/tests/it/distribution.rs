//! Debian's docker-registry as a process of a trial, and what it says it was asked.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use oci::Repository;
use tempfile::TempDir;

/// How long docker-registry may take to listen, or to write its log.
const READY_TIMEOUT: Duration = Duration::from_secs(20);
/// How often we look.
const READY_INTERVAL: Duration = Duration::from_millis(20);

/// docker-registry on a loopback port, its storage in a directory of its own; killed when dropped.
pub(crate) struct Registry {
    child: Child,
    port: u16,
    dir: TempDir,
    /// Lines of the log that were read.
    seen: usize,
}

impl Registry {
    /// A registry that is open to all.
    pub(crate) fn start() -> Self {
        Self::start_with(tempfile::tempdir().unwrap(), "")
    }

    /// A registry in a directory, with more lines for its configuration.
    pub(crate) fn start_with(dir: TempDir, more: &str) -> Self {
        // Free now; whoever takes it in between makes the registry exit, which `wait` reports.
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let config = format!(
            "version: 0.1\nlog: {{level: error}}\nstorage: {{filesystem: {{rootdirectory: {}}}}}\nhttp: {{addr: '127.0.0.1:{port}'}}\n{more}",
            dir.path().join("storage").display()
        );
        fs::write(dir.path().join("config.yml"), config).unwrap();
        let log = File::create(dir.path().join("access.log")).unwrap();
        let mut command = Command::new("docker-registry");
        command.arg("serve").arg(dir.path().join("config.yml")).stdout(log).stderr(Stdio::null());
        let mut registry = Self { child: command.spawn().unwrap(), port, dir, seen: 0 };
        registry.wait();
        registry
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn host(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub(crate) fn repository(&self, path: &str) -> Repository {
        Repository::parse(&format!("{}/{path}", self.host())).unwrap()
    }

    /// The methods that it was asked since the last call, in the order of its answers.
    pub(crate) fn methods(&mut self) -> Vec<String> {
        // It logs a request before the end of its answer, so what was answered before this one stands before it.
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.write_all(b"GET /end-of-log HTTP/1.1\r\nHost: it\r\nConnection: close\r\n\r\n").unwrap();
        let deadline = Instant::now() + READY_TIMEOUT;
        loop {
            let log = fs::read_to_string(self.dir.path().join("access.log")).unwrap();
            let lines: Vec<&str> = log.split_inclusive('\n').skip(self.seen).collect();
            if let Some(end) = lines.iter().position(|line| line.contains("/end-of-log") && line.ends_with('\n')) {
                self.seen += end + 1;
                let method = |line: &&str| line.split('"').nth(1).unwrap().split(' ').next().unwrap().to_owned();
                return lines[..end].iter().map(method).collect();
            }
            assert!(Instant::now() < deadline, "docker-registry logs nothing after {READY_TIMEOUT:?}");
            std::thread::sleep(READY_INTERVAL);
        }
    }

    fn wait(&mut self) {
        let deadline = Instant::now() + READY_TIMEOUT;
        while let Err(error) = TcpStream::connect(("127.0.0.1", self.port)) {
            assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
            assert_eq!(self.child.try_wait().unwrap(), None, "docker-registry exited");
            assert!(Instant::now() < deadline, "docker-registry does not listen after {READY_TIMEOUT:?}");
            std::thread::sleep(READY_INTERVAL);
        }
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        // Gone already, if it fails.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

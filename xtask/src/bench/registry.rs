//! Debian's docker-registry on loopback, started and stopped by a guard, and what it says it was asked. Never used to keep anything.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

/// How long docker-registry may take to answer, or to write its log.
const READY_TIMEOUT: Duration = Duration::from_secs(20);
/// How often we look.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Asked of the registry to find the end of its log so far.
const END_OF_LOG: &str = "/end-of-log";

/// A running registry; dropping it kills the process and waits for it.
#[derive(Debug)]
pub struct Registry {
    child: Child,
    port: u16,
    storage: PathBuf,
    log: PathBuf,
    /// Lines of the log that were read.
    seen: usize,
}

impl Registry {
    /// Starts a registry whose storage and log lie in `folder`, and waits until it answers. Error: it is not installed, exits, or does
    /// not answer in time.
    pub fn start(folder: &Path) -> Result<Self> {
        Self::configured(folder, |text| text)
    }

    /// The same with its configuration, [`configuration`]'s, changed: a registry that refuses.
    pub fn configured(folder: &Path, change: impl FnOnce(String) -> String) -> Result<Self> {
        let program = crate::tools::require("docker-registry")?;
        let storage = folder.join("registry");
        fs::create_dir_all(&storage).with_context(|| format!("make {}", storage.display()))?;
        // Free now, and nobody else on this machine asks for it in the next moment: a clash ends the child, which is noticed.
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let config = folder.join("registry.yml");
        let text = change(configuration(&format!("127.0.0.1:{port}"), &storage));
        fs::write(&config, text).context("configure a registry")?;
        let log = folder.join("registry.log");
        let output = fs::File::create(&log).with_context(|| format!("make {}", log.display()))?;
        let child = Command::new(program)
            .arg("serve")
            .arg(&config)
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()
            .context("start docker-registry")?;
        let mut registry = Self { child, port, storage, log, seen: 0 };
        registry.wait_until_it_answers()?;
        registry.requests()?;
        Ok(registry)
    }

    /// `127.0.0.1:PORT`.
    pub fn host(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Where it keeps a blob.
    pub fn blob(&self, digest: &oci::Digest) -> PathBuf {
        let hex = digest.hex();
        self.storage.join("docker/registry/v2/blobs/sha256").join(&hex[..2]).join(&hex).join("data")
    }

    /// Where it keeps everything.
    pub fn storage(&self) -> &Path {
        &self.storage
    }

    /// What it was asked since the last call, as `METHOD PATH` in the order of its answers, without queries.
    pub fn requests(&mut self) -> Result<Vec<String>> {
        // It logs a request before the end of its answer, so what was answered before this one stands before it.
        self.ask(END_OF_LOG)?;
        let deadline = Instant::now() + READY_TIMEOUT;
        loop {
            let log = fs::read_to_string(&self.log).with_context(|| format!("read {}", self.log.display()))?;
            let lines: Vec<&str> = log.split_inclusive('\n').skip(self.seen).collect();
            if let Some(end) = lines.iter().position(|line| line.contains(END_OF_LOG) && line.ends_with('\n')) {
                self.seen += end + 1;
                return Ok(lines[..end].iter().filter_map(|line| request(line)).collect());
            }
            ensure!(Instant::now() < deadline, "read {}: nothing comes after {READY_TIMEOUT:?}", self.log.display());
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    fn wait_until_it_answers(&mut self) -> Result<()> {
        let deadline = Instant::now() + READY_TIMEOUT;
        while self.ask("/v2/").is_err() {
            let ended = self.child.try_wait().context("look at docker-registry")?;
            ensure!(ended.is_none(), "start docker-registry: it exited; its log is {}", self.log.display());
            ensure!(
                Instant::now() < deadline,
                "start docker-registry: no answer on {} in {READY_TIMEOUT:?}",
                self.host()
            );
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    /// Asks for a path and waits for the end of the answer.
    fn ask(&self, path: &str) -> Result<()> {
        let mut stream = TcpStream::connect(self.host())?;
        stream.set_read_timeout(Some(READY_TIMEOUT))?;
        stream.write_all(
            format!("GET {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", self.host()).as_bytes(),
        )?;
        let mut answer = Vec::new();
        stream.take(64 * 1024).read_to_end(&mut answer)?;
        ensure!(answer.starts_with(b"HTTP/1.1 "), "ask docker-registry for {path}: expected an answer, found none");
        Ok(())
    }
}

/// The request of a line in the combined log format: `… "METHOD PATH PROTOCOL" …`; none: a line of another kind.
fn request(line: &str) -> Option<String> {
    let request = line.split('"').nth(1)?;
    let (method, rest) = request.split_once(' ')?;
    let (target, protocol) = rest.rsplit_once(' ')?;
    let path = target.split('?').next().unwrap_or(target);
    protocol.starts_with("HTTP/").then(|| format!("{method} {path}"))
}

impl Drop for Registry {
    fn drop(&mut self) {
        // It may have ended by itself; either way it is gone after the wait.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The configuration of the same registry when it takes nothing.
pub fn read_only(configuration: &str) -> String {
    let deletes = "  delete:\n    enabled: true\n";
    configuration.replace(deletes, "  maintenance:\n    readonly:\n      enabled: true\n")
}

/// A configuration for `docker-registry serve`.
pub fn configuration(address: &str, storage: &Path) -> String {
    format!(
        "version: 0.1\nlog:\n  level: error\nstorage:\n  filesystem:\n    rootdirectory: {}\n  delete:\n    enabled: true\nhttp:\n  addr: {address}\n",
        storage.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read_from_the_access_log() {
        let line = r#"127.0.0.1 - - [30/Nov/2026:15:00:00 +0000] "PUT /v2/a/blobs/uploads/1?digest=x HTTP/1.1" 201 0 "" "oci/0""#;
        assert_eq!(request(line).as_deref(), Some("PUT /v2/a/blobs/uploads/1"));
        for other in ["", r#"level=error msg="a b c""#, r#"time="2026" level=info"#] {
            assert_eq!(request(other), None, "{other}");
        }
    }
}

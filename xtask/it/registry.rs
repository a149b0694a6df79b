//! Debian's docker-registry on loopback, started and stopped by a guard, and what trials do to its storage.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use libtest_mimic::Failed;

use crate::support::ensure;

const READY_TIMEOUT: Duration = Duration::from_secs(20);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// A running registry; dropping it kills the process and waits for it.
pub(crate) struct Registry {
    child: Child,
    port: u16,
    storage: PathBuf,
}

impl Registry {
    /// Starts a registry whose storage lies in `folder`, and waits until it answers.
    pub(crate) fn start(folder: &Path) -> Result<Self, Failed> {
        let storage = folder.join("registry");
        fs::create_dir_all(&storage)?;
        // Free now, and nobody else on this machine asks for it in the next moment: a clash fails the trial, never passes it.
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let config = folder.join("registry.yml");
        fs::write(&config, configuration(&format!("127.0.0.1:{port}"), &storage))?;
        let log = fs::File::create(folder.join("registry.log"))?;
        let child = Command::new("docker-registry")
            .arg("serve")
            .arg(&config)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()?;
        let registry = Self { child, port, storage };
        registry.wait_until_it_answers()?;
        Ok(registry)
    }

    /// `127.0.0.1:PORT`.
    pub(crate) fn host(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Copies an image of an OCI layout into the registry, every byte as it is.
    pub(crate) fn seed(&self, layout: &Path, tag: &str, name: &str) -> Result<(), Failed> {
        let output = Command::new("skopeo")
            .args(["copy", "--quiet", "--all", "--preserve-digests", "--dest-tls-verify=false"])
            .arg(format!("oci:{}:{tag}", layout.display()))
            .arg(format!("docker://{}/{name}", self.host()))
            .output()?;
        ensure(output.status.success(), format!("seed {name}: {}", String::from_utf8_lossy(&output.stderr)))
    }

    /// Where the registry keeps a blob, for a trial that damages it.
    pub(crate) fn blob(&self, digest: &oci::Digest) -> PathBuf {
        let hex = digest.hex();
        self.storage.join("docker/registry/v2/blobs/sha256").join(&hex[..2]).join(&hex).join("data")
    }

    /// Where it keeps everything.
    pub(crate) fn storage(&self) -> &Path {
        &self.storage
    }

    fn wait_until_it_answers(&self) -> Result<(), Failed> {
        let deadline = Instant::now() + READY_TIMEOUT;
        while !self.answers() {
            ensure(
                Instant::now() < deadline,
                format!("docker-registry did not answer on {} in {READY_TIMEOUT:?}", self.host()),
            )?;
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    fn answers(&self) -> bool {
        let Ok(mut stream) = TcpStream::connect(self.host()) else { return false };
        let asked = stream.write_all(b"GET /v2/ HTTP/1.0\r\n\r\n");
        let mut answer = [0; 12];
        asked.and_then(|()| stream.read_exact(&mut answer)).is_ok() && answer.ends_with(b" 200")
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        // It may have ended by itself; either way it is gone after the wait.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A configuration for `docker-registry serve`.
pub(crate) fn configuration(address: &str, storage: &Path) -> String {
    format!(
        "version: 0.1\nlog:\n  level: warn\nstorage:\n  filesystem:\n    rootdirectory: {}\n  delete:\n    enabled: true\nhttp:\n  addr: {address}\n",
        storage.display()
    )
}

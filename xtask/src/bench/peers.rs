//! The other tools, each as the script of what a person would do with it: derive an image from a base by adding the init and an entrypoint,
//! and publish it. A peer that is not here, or does not work here, is a finding and no error. Keeps their state away from the machine's own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::measure::{forget_peaks, peaks};
use crate::tools;

/// How long dockerd may take to answer.
const READY_TIMEOUT: Duration = Duration::from_secs(60);
/// How often we ask.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// A tool, or several that do it together.
#[derive(Debug, Clone, Copy)]
pub(super) struct Peer {
    /// What it is called in the table.
    pub(super) name: &'static str,
    /// The programs that it needs.
    tools: &'static [&'static str],
    /// What it does, with BASE, TARGET, INIT, VERSION and STATE in its environment: the base's and the target's names, the file to add, a
    /// variable to set, and the folder for whatever it keeps.
    script: &'static str,
    /// Whether a dockerd runs beside it.
    daemon: bool,
}

/// The peers of building and publishing.
pub(super) const PEERS: [Peer; 3] = [
    Peer {
        name: "buildah",
        tools: &["buildah"],
        script: r#"
            alias buildah='buildah --root "$STATE/root" --runroot "$STATE/run"'
            container=$(buildah from --tls-verify=false "$BASE")
            buildah copy "$container" "$INIT" /usr/local/sbin/dind-init
            buildah config --entrypoint '["/usr/local/sbin/dind-init","--","dockerd"]' --env "VERSION=$VERSION" "$container"
            buildah commit --quiet --timestamp 1600000000 "$container" "$TARGET"
            buildah push --quiet --tls-verify=false "$TARGET"
            buildah rm "$container"
        "#,
        daemon: false,
    },
    Peer {
        name: "skopeo + umoci",
        tools: &["skopeo", "umoci"],
        script: r#"
            skopeo copy --quiet --src-tls-verify=false "docker://$BASE" "oci:$STATE/layout:base"
            umoci tag --image "$STATE/layout:base" ours
            umoci insert --image "$STATE/layout:ours" "$INIT" /usr/local/sbin/dind-init
            umoci config --image "$STATE/layout:ours" --config.entrypoint /usr/local/sbin/dind-init \
                --config.entrypoint -- --config.entrypoint dockerd --config.env "VERSION=$VERSION"
            skopeo copy --quiet --dest-tls-verify=false "oci:$STATE/layout:ours" "docker://$TARGET"
        "#,
        daemon: false,
    },
    Peer {
        name: "docker build",
        tools: &["docker", "dockerd", "containerd"],
        script: r#"
            export DOCKER_HOST="unix://$SOCKET" DOCKER_CONFIG="$STATE/config" DOCKER_BUILDKIT=0
            mkdir -p "$STATE/context"
            cp --preserve "$INIT" "$STATE/context/dind-init"
            printf 'FROM %s\nCOPY dind-init /usr/local/sbin/\nENTRYPOINT ["/usr/local/sbin/dind-init","--","dockerd"]\nENV VERSION=%s\n' \
                "$BASE" "$VERSION" >"$STATE/context/Dockerfile"
            docker build --quiet --tag "$TARGET" "$STATE/context"
            docker push --quiet "$TARGET"
        "#,
        daemon: true,
    },
];

/// The peer of pulling: the base, whole, into a layout.
pub(super) const PULL: Peer = Peer {
    name: "skopeo",
    tools: &["skopeo"],
    script: r#"skopeo copy --quiet --src-tls-verify=false "docker://$BASE" "oci:$STATE/layout:base""#,
    daemon: false,
};

/// What a script is told.
#[derive(Debug, Clone)]
pub(super) struct Job {
    pub(super) base: String,
    pub(super) target: String,
    pub(super) init: PathBuf,
    pub(super) version: &'static str,
}

/// A peer with nothing cached, and its daemon; dropping it ends the daemon.
#[derive(Debug)]
pub(super) struct Started {
    peer: Peer,
    state: PathBuf,
    dockerd: Option<Dockerd>,
}

impl Peer {
    /// Starts afresh in a folder that it may fill. Error: why it does not work here.
    pub(super) fn start(self, state: &Path) -> Result<Started> {
        let here = |tool: &&&str| tools::find(tool).is_none();
        if let Some(missing) = self.tools.iter().find(here) {
            bail!("{missing} is not installed");
        }
        // Where skopeo and buildah remember which blobs are where, whatever they are told.
        for folder in ["containers", "tmp"] {
            fs::create_dir_all(state.join(folder)).with_context(|| format!("make {}", state.display()))?;
        }
        let dockerd = if self.daemon { Some(Dockerd::start(state)?) } else { None };
        Ok(Started { peer: self, state: state.to_owned(), dockerd })
    }
}

impl Started {
    /// The command that does the job.
    pub(super) fn command(&self, job: &Job) -> Command {
        let isolated = r#"mkdir -p /var/lib/containers; mount --bind "$STATE/containers" /var/lib/containers"#;
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-ec", &format!("{isolated}\n{}", self.peer.script)]);
        command.env("BASE", &job.base).env("TARGET", &job.target).env("INIT", &job.init).env("VERSION", job.version);
        command.env("STATE", &self.state).env("TMPDIR", self.state.join("tmp"));
        if let Some(dockerd) = &self.dockerd {
            forget_peaks(dockerd.child.id());
            command.env("SOCKET", dockerd.socket());
        }
        command
    }

    /// The most memory that its daemon held since the last command was made, in bytes; 0 where it has none.
    pub(super) fn daemon_peak(&self) -> u64 {
        let of = |dockerd: &Dockerd| peaks(dockerd.child.id()).into_values().max();
        self.dockerd.as_ref().and_then(of).unwrap_or_default()
    }
}

/// A dockerd in namespaces of its own: whatever it starts or mounts ends with it.
#[derive(Debug)]
struct Dockerd {
    child: Child,
    /// A socket's name is at most 107 bytes long (unix(7)).
    folder: tempfile::TempDir,
}

impl Dockerd {
    fn start(state: &Path) -> Result<Self> {
        let folder = tempfile::tempdir().context("make a folder for dockerd's socket")?;
        // Its own /run, so that it starts a containerd of its own.
        let script = r#"mount -t tmpfs none /run
            exec dockerd --data-root "$1/data" --exec-root /run/docker --pidfile /run/docker.pid --host "unix://$2" \
                --bridge=none --iptables=false --ip6tables=false"#;
        let path = state.join("dockerd.log");
        let log = fs::File::create(&path).context("make dockerd's log")?;
        let child = Command::new("unshare")
            .args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-ec", script, "sh"])
            .args([state, &folder.path().join("socket")])
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("start dockerd")?;
        let mut dockerd = Self { child, folder };
        dockerd.wait_until_it_answers(&path)?;
        Ok(dockerd)
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    fn wait_until_it_answers(&mut self, log: &Path) -> Result<()> {
        let deadline = Instant::now() + READY_TIMEOUT;
        let host = format!("unix://{}", self.socket().display());
        loop {
            let asked = Command::new("docker").args(["--host", &host, "version"]).output().context("ask dockerd")?;
            if asked.status.success() {
                return Ok(());
            }
            if self.child.try_wait()?.is_some() {
                let said = fs::read_to_string(log).unwrap_or_default();
                bail!("dockerd does not start here: {}", said.lines().last().unwrap_or("it says nothing"));
            }
            ensure!(Instant::now() < deadline, "dockerd does not answer in {READY_TIMEOUT:?}");
            std::thread::sleep(POLL_INTERVAL);
        }
    }
}

impl Drop for Dockerd {
    fn drop(&mut self) {
        // unshare takes its child with it, which is PID 1 of all that it started. It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_that_is_not_here_says_so() {
        let folder = tempfile::tempdir().expect("make a folder");
        let peer = Peer { name: "x", tools: &["sh", "no-such-tool"], script: "", daemon: false };
        let error = peer.start(folder.path()).expect_err("it is not installed");
        assert_eq!(error.to_string(), "no-such-tool is not installed");
    }
}

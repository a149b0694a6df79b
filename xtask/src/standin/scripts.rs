//! The scripts of the stand-in, written for it after the official ones' behaviour, and their two flavours. Nothing here runs them
//! but the tests, which never touch this machine's /run.

use crate::spec::Flavour;

/// The scripts of the official image, by their names in /usr/local/bin.
pub(super) const SCRIPTS: &[(&str, &str)] = &[
    ("dind", include_str!("dind")),
    ("docker-entrypoint.sh", include_str!("docker-entrypoint.sh")),
    ("dockerd-entrypoint.sh", include_str!("dockerd-entrypoint.sh")),
    ("modprobe", include_str!("modprobe")),
];

/// The lines of dockerd-entrypoint.sh that came with docker-library/docker#319 stand between these.
const DOCKER_INIT_BEGIN: &str = "# {docker-init";
const DOCKER_INIT_END: &str = "# docker-init}";

/// The text of one of the scripts in a flavour; empty for a name that none has.
pub(super) fn script(name: &str, flavour: Flavour) -> String {
    let text = SCRIPTS.iter().find(|(script, _)| *script == name).map_or("", |(_, text)| text);
    match flavour {
        Flavour::Pre => without_docker_init(text),
        Flavour::Post => text.to_owned(),
    }
}

/// A script as it was before docker-library/docker#319.
fn without_docker_init(script: &str) -> String {
    let mut inside = false;
    let mut text = String::new();
    for line in script.lines() {
        inside |= line.trim() == DOCKER_INIT_BEGIN;
        if !inside {
            text.push_str(line);
            text.push('\n');
        }
        inside &= line.trim() != DOCKER_INIT_END;
    }
    text
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;
    use std::path::Path;
    use std::process::{Command, Stdio};

    use tempfile::TempDir;

    use super::*;

    /// Each stub says how it was called; `docker` also knows its subcommands, and `dockerd` its version.
    const STUBS: &[(&str, &str)] = &[
        ("dind", r#"echo "dind $*""#),
        (
            "docker",
            r#"[ "$1" = help ] && case $2 in version | ps) exit 0 ;; *) exit 1 ;; esac; echo "$DOCKER_HOST docker $*""#,
        ),
        ("dockerd", "echo 'Docker version 20.10.24, build 0'"),
        ("hostname", "echo box"),
        ("iptables", "exit 0"),
        ("modprobe", "exit 0"),
    ];

    /// A folder with the scripts and the stubs, and what the scripts take for /run.
    struct Stage(TempDir);

    impl Stage {
        fn new(flavour: Flavour) -> Self {
            let stage = Self(tempfile::tempdir().unwrap());
            fs::create_dir(stage.path("run")).unwrap();
            for name in ["dockerd-entrypoint.sh", "docker-entrypoint.sh"] {
                let run = stage.path("run");
                let text = script(name, flavour)
                    .replace("find /run/", &format!("find {run}/"))
                    .replace("/var/run/", &format!("{run}/"));
                stage.program(name, &text);
            }
            for (name, body) in STUBS {
                stage.program(name, &format!("#!/bin/sh\n{body}\n"));
            }
            stage
        }

        fn path(&self, name: &str) -> String {
            self.0.path().join(name).to_str().unwrap().to_owned()
        }

        /// Written by another process: a file that this one has open for writing while a parallel test forks could not be run
        /// (execve(2), ETXTBSY).
        fn program(&self, name: &str, text: &str) {
            let path = self.path(name);
            let mut writer = Command::new("sh")
                .args(["-c", r#"cat >"$0" && chmod 755 "$0""#, &path])
                .stdin(Stdio::piped())
                .spawn()
                .unwrap();
            writer.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
            assert!(writer.wait().unwrap().success());
        }

        /// What a container with these arguments would print, the folder's name cut out.
        fn run(&self, variables: &[(&str, &str)], script: &str, arguments: &[&str]) -> String {
            let output = Command::new(self.path(script))
                .args(arguments)
                .env_clear()
                .env("PATH", format!("{}:/usr/bin:/bin", self.path("")))
                .envs(variables.iter().copied())
                .output()
                .unwrap();
            assert!(output.status.success(), "{script} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
            String::from_utf8(output.stdout).unwrap().replace(&self.path("run"), "RUN").trim_end().to_owned()
        }
    }

    const TCP: &str = "--host=unix://RUN/docker.sock --host=tcp://0.0.0.0:2375";

    #[test]
    fn arguments_reach_daemon_client_or_shell() {
        let host = [("DOCKER_HOST", "unix:///x"), ("DOCKER_TLS_CERTDIR", "")];
        for (arguments, pre, post) in [
            (&[][..], format!("dind dockerd {TCP}"), format!("dind docker-init -- dockerd {TCP}")),
            (&["--debug"], format!("dind dockerd {TCP} --debug"), format!("dind docker-init -- dockerd {TCP} --debug")),
            (
                &["dockerd", "--mtu=1360"],
                "dind dockerd --mtu=1360".into(),
                "dind docker-init -- dockerd --mtu=1360".into(),
            ),
            (&["version"], "unix:///x docker version".into(), "unix:///x docker version".into()),
            (&["docker", "ps"], "unix:///x docker ps".into(), "unix:///x docker ps".into()),
            (&["sh", "-c", "echo $0", "a b"], "a b".into(), "a b".into()),
            (&["dind", "dockerd"], "dind dockerd".into(), "dind dockerd".into()),
        ] {
            for (flavour, expected) in [(Flavour::Pre, pre), (Flavour::Post, post)] {
                let stage = Stage::new(flavour);
                assert_eq!(stage.run(&host, "dockerd-entrypoint.sh", arguments), expected, "{flavour:?} {arguments:?}");
            }
        }
    }

    #[test]
    fn the_daemon_finds_no_pid_file_of_a_former_one() {
        let stage = Stage::new(Flavour::Post);
        for name in ["docker.pid", "Docker-x.pid", "other.pid"] {
            fs::write(Path::new(&stage.path("run")).join(name), "1").unwrap();
        }
        stage.run(&[], "dockerd-entrypoint.sh", &["dockerd"]);
        let left: Vec<_> = fs::read_dir(stage.path("run")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["other.pid"]);
    }

    #[test]
    fn the_client_finds_its_daemon() {
        let stage = Stage::new(Flavour::Post);
        let ps = |variables: &[(&str, &str)]| stage.run(variables, "docker-entrypoint.sh", &["ps"]);
        assert_eq!(ps(&[]), "tcp://docker:2375 docker ps", "neither socket nor certificates");
        assert_eq!(
            ps(&[("DOCKER_TLS_VERIFY", "1")]),
            "tcp://docker:2376 docker ps",
            "certificates are the user's affair"
        );
        let certificates = stage.path("certs");
        fs::create_dir_all(format!("{certificates}/client")).unwrap();
        for name in ["ca", "cert", "key"] {
            fs::write(format!("{certificates}/client/{name}.pem"), "x").unwrap();
        }
        assert_eq!(
            ps(&[("DOCKER_TLS_CERTDIR", &certificates)]),
            "tcp://docker:2376 docker ps",
            "certificates in a volume"
        );
        let _socket = std::os::unix::net::UnixListener::bind(stage.path("run/docker.sock")).unwrap();
        assert_eq!(ps(&[]), " docker ps", "a socket needs no DOCKER_HOST");
    }

    #[test]
    fn certificates_of_the_user_are_checked_and_kept() {
        let stage = Stage::new(Flavour::Post);
        stage.program("openssl", "#!/bin/sh\necho \"openssl $*\" >&2\n[ \"$1\" = verify ]\n");
        let certificates = stage.path("certs");
        fs::create_dir_all(format!("{certificates}/server")).unwrap();
        for name in ["ca", "cert", "key"] {
            fs::write(format!("{certificates}/server/{name}.pem"), name).unwrap();
        }
        let printed = stage.run(&[("DOCKER_TLS_CERTDIR", &certificates)], "dockerd-entrypoint.sh", &[]);
        assert!(printed.contains("--host=tcp://0.0.0.0:2376 --tlsverify --tlscacert"), "{printed}");
        assert_eq!(fs::read_to_string(format!("{certificates}/server/key.pem")).unwrap(), "key");
    }

    #[test]
    fn only_the_later_script_knows_docker_init() {
        let [pre, post] = [Flavour::Pre, Flavour::Post].map(|flavour| script("dockerd-entrypoint.sh", flavour));
        assert!(!pre.contains("docker-init") && post.contains("docker-init -- "));
        assert_eq!(script("dind", Flavour::Pre), script("dind", Flavour::Post));
    }
}

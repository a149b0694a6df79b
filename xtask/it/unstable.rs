//! The newest Docker that Debian has, in a root file system of unstable's packages, for trials that need a dockerd 28. It is kept in the
//! cache. Never a base for an image.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use libtest_mimic::{Completion, Failed, Trial};
use suite::{RunConfig, Subject};
use xtask::standin::proxy_options;

use crate::support::{repository, run, shared};

const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
const PACKAGES: &str = "busybox-static,containerd,docker-cli,docker.io,runc,tini";
/// What base-files would have made: the links of a merged /usr.
const SETUP: &str =
    r#"for folder in bin sbin lib lib64; do mkdir -p "$1/usr/$folder"; ln -s "usr/$folder" "$1/$folder"; done"#;

/// A trial in that root file system. Some days unstable cannot be installed, or its mirror not be reached, which is no fault of ours: then,
/// and only then, a trial is ignored wherever it runs.
pub(crate) fn trial_if(name: &str, missing: Option<String>, check: fn(&Subject) -> Result<(), Failed>) -> Trial {
    shared(name, missing, move || match subject() {
        Ok(subject) => check(&subject).map(|()| Completion::Completed),
        Err(reason) => {
            Ok(Completion::ignored_with(format!("needs Debian's unstable: {}", reason.message().unwrap_or_default())))
        }
    })
}

fn subject() -> Result<Subject, Failed> {
    let place = repository().join("target/cache/unstable");
    if !place.is_dir() {
        let work = tempfile::Builder::new().prefix("unstable-").tempdir_in(repository().join("target/cache"))?;
        let root = work.path().join("root");
        let mut bootstrap = Command::new("setpriv");
        bootstrap
            .args([
                "--pdeathsig",
                "TERM",
                "mmdebstrap",
                "--quiet",
                "--variant=extract",
                "--mode=root",
                "--format=directory",
            ])
            .args([format!("--include={PACKAGES}"), format!("--setup-hook={SETUP}")])
            .args(proxy_options()?)
            .arg("sid")
            .arg(&root)
            // Its lists are out of date a week after they were made, and a mirror may be later than that. What is wanted of it is what no
            // release has; whether that is today's is no matter.
            .arg(format!("deb [signed-by={KEYRING} check-valid-until=no] http://deb.debian.org/debian sid main"));
        run(&mut bootstrap)?;
        for folder in ["root", "run", "var/run"] {
            fs::create_dir_all(root.join(folder))?;
        }
        run(Command::new("chroot").arg(&root).args(["/usr/bin/busybox", "--install", "-s", "/usr/bin"]))?;
        fs::rename(&root, &place)?;
    }
    Ok(Subject {
        name: "Debian unstable".to_owned(),
        digest: oci::Digest::of(b"Debian unstable"),
        rootfs: PathBuf::from(&place),
        config: RunConfig { env: vec!["PATH=/usr/sbin:/usr/bin".to_owned()], ..RunConfig::default() },
        shadow: Vec::new(),
    })
}

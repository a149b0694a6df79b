//! The whole chain, offline: build, judge in real daemons, publish to staging, promote to users, pull by tag as a stranger, run, and find no
//! zombie. Then the same commands are asked to cheat. The records are the suite's own here; `promote` forges what it needs.

use std::fs;
use std::process::{Command, Output};

use libtest_mimic::{Failed, Trial};
use oci::Digest;
use serde_json::Value;
use xtask::bench::Registry;

use crate::host::Host;
use crate::shop::{digest_of, done};
use crate::support::{command, ensure, lacks, run, said, trial_if};
use crate::workbench::Workbench;

/// How many orphans the container's PID 1 is left with.
const ORPHANS: usize = 20;

pub(crate) fn trials() -> Vec<Trial> {
    let missing = lacks(&["mmdebstrap", "docker-registry", "skopeo", "tini-static"]);
    vec![trial_if("chain::from_the_base_to_a_strangers_container", missing, chain)]
}

fn chain() -> Result<(), Failed> {
    let bench = Workbench::new()?;
    let (registry, mirror, _) = bench.registry()?;
    let chain = Chain { bench, registry };
    let record = chain.staged(&mirror)?;
    let digest = digest_of(&record, 0)?;

    // Planned, and promoted: the proof lies beside the image.
    let declared = chain.promotion(&digest, "{ 20-dind: floating, 20-dind-1: immutable }");
    done(&chain.promote(&declared, &[])?)?;
    ensure(chain.users("20-dind").is_err(), "a plan changed something")?;
    done(&chain.promote(&declared, &["--confirm"])?)?;
    ensure(chain.users("20-dind")? == digest && chain.users("20-dind-1")? == digest, "a stranger gets other bytes")?;

    chain.stranger()?;
    chain.cheat(&record, &digest)?;
    ensure(chain.users("20-dind")? == digest && chain.users("20-dind-1")? == digest, "cheating moved a tag")
}

/// Two repositories of one registry, `staging` and `users`.
struct Chain {
    bench: Workbench,
    registry: Registry,
}

impl Chain {
    /// Builds, judges and publishes dind, and returns its record.
    fn staged(&self, mirror: &str) -> Result<Value, Failed> {
        let to = format!("{}/staging", self.registry.host());
        let arguments = ["dind", "--base", "registry", "--mirror", mirror, "--suite", "smoke", "--push", &to];
        let built = self.bench.build("out", &arguments)?;
        done(&built)?;
        let record = self.bench.record("out")?;
        let expected = format!("dind@{}\n", digest_of(&record, 0)?);
        ensure(String::from_utf8_lossy(&built.stdout) == expected, said(&built))?;
        Ok(record)
    }

    /// A promotion file.
    fn promotion(&self, digest: &Digest, tags: &str) -> String {
        let host = self.registry.host();
        format!(
            "source: {host}/staging\ntarget: {host}/users\nimages:\n  dind:\n    digest: {digest}\n    tags: {tags}\n"
        )
    }

    fn promote(&self, file: &str, more: &[&str]) -> Result<Output, Failed> {
        let path = self.bench.path("promotion.yaml");
        fs::write(&path, file)?;
        // The workbench builds for this machine alone, and the definition lists another platform.
        Ok(command(["promote", "--allow-missing-platforms", "--file"]).arg(&path).args(more).output()?)
    }

    /// What a tag of `users` names, by the bytes that skopeo gets.
    fn users(&self, tag: &str) -> Result<Digest, Failed> {
        let image = format!("docker://{}/users:{tag}", self.registry.host());
        let bytes = run(Command::new("skopeo").args(["inspect", "--raw", "--tls-verify=false", &image]))?;
        Ok(Digest::of(bytes.as_bytes()))
    }

    /// Pulls by tag with docker, and leaves the container's PID 1 with orphans.
    fn stranger(&self) -> Result<(), Failed> {
        let engine = crate::support::engine()?;
        let host = Host::with_registry(&engine, self.bench.folder.path(), self.registry.storage())?;
        let image = "127.0.0.1:5000/users:20-dind";
        host.exec(&["docker", "pull", "--quiet", image])?;
        let zombies = |name: &str, arguments: &[&str]| -> Result<String, Failed> {
            let start = ["docker", "run", "--detach", "--rm", "--network", "none", "--name", name];
            host.exec(&[&start[..], arguments].concat())?;
            let left = host.exec(&["docker", "exec", name, "sh", "-c", &orphans()])?;
            host.exec(&["docker", "kill", name])?;
            Ok(left)
        };
        let ours = zombies("ours", &[image, "sleep", "300"])?;
        ensure(ours == "dind-init 0\n", format!("expected no zombie under our init, found {ours}"))?;
        // The control: sleep as PID 1 reaps nothing.
        let control = zombies("control", &["--entrypoint", "sleep", image, "300"])?;
        ensure(control == format!("sleep {ORPHANS}\n"), format!("the control left {control}"))?;
        host.remove()
    }

    /// What must not get through, each refused with one error.
    fn cheat(&self, record: &Value, digest: &Digest) -> Result<(), Failed> {
        let proof = record.to_string();
        let other = Digest::of(b"another image");
        let newer = self.promotion(digest, "{ 20-dind-2: immutable }");
        let forged = |from: &str, to: &str| Some(proof.replace(from, to));
        for (what, file, forged, code, expected) in [
            ("an unknown digest", self.promotion(&other, "{ 20-dind-2: immutable }"), None, 2, "found none"),
            (
                "a failed verdict",
                newer.clone(),
                forged("\"outcome\":\"passed\"", "\"outcome\":\"failed\""),
                1,
                "expected that linux/amd64 passed",
            ),
            (
                "a stand-in",
                newer.clone(),
                forged("\"source\":\"registry\"", "\"source\":\"standin\""),
                2,
                "expected the registry's base",
            ),
            (
                "a moved tag",
                self.promotion(&other, "{ 20-dind-1: immutable }"),
                forged(&digest.to_string(), &other.to_string()),
                2,
                "an immutable tag never moves",
            ),
            ("a typo", newer.replace("digest:", "digset:"), None, 2, "digset"),
        ] {
            let path = self.bench.path("forged.json");
            let mut arguments = vec!["--confirm".to_owned()];
            if let Some(forged) = forged {
                ensure(forged != proof, format!("{what}: nothing was forged"))?;
                fs::write(&path, forged)?;
                arguments.extend(["--record".to_owned(), path.display().to_string()]);
            }
            let output = self.promote(&file, &arguments.iter().map(String::as_str).collect::<Vec<_>>())?;
            let errors = String::from_utf8_lossy(&output.stderr);
            ensure(output.status.code() == Some(code), format!("{what}: expected exit {code}, {}", said(&output)))?;
            ensure(errors.matches("error:").count() == 1, format!("{what}: expected one error, {}", said(&output)))?;
            ensure(errors.contains(expected), format!("{what}: expected `{expected}`, {}", said(&output)))?;
        }
        ensure(self.users("20-dind-2").is_err(), "a cheat got through")
    }
}

/// A script that leaves [`ORPHANS`] to PID 1 and prints PID 1's name and how many zombies stay. Each `sh` ends before its child; the
/// pipe closes once the last child has ended. What reaps has five seconds.
fn orphans() -> String {
    format!(
        "for orphan in $(seq {ORPHANS}); do sh -c 'sleep 0.1 & exit 0'; done | cat
         zombies() {{ grep -l '^State:.Z' /proc/[0-9]*/status 2>/dev/null | wc -l; }}
         tries=100
         while [ $(zombies) -gt 0 ] && [ $tries -gt 0 ]; do tries=$((tries - 1)); usleep 50000; done
         echo $(cat /proc/1/comm) $(zombies)"
    )
}

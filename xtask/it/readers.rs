//! What others make of our layouts: skopeo, umoci and a real containerd read them, and a real dockerd 20.10 on overlay2 pulls and runs
//! the image from a real registry. And what changed against the base: only what the definitions name.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use libtest_mimic::{Failed, Trial};
use oci::{Descriptor, ImageConfig, Index, Layout, Manifest};
use serde_json::Value;
use suite::engine::{Input, Launch};
use suite::{Container, Engine, Namespaces, RunConfig, Subject};

use xtask::bench::{Registry, configuration};

use crate::registry::seed;
use crate::support::{built, ensure, folder, lacks, repository, standin, trial_if};

const COMMAND_TIMEOUT: Duration = Duration::from_secs(120);
const READY_TIMEOUT: Duration = Duration::from_secs(30);
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The images with their tags.
const IMAGES: [(&str, &str); 2] = [("dind", "20-dind"), ("containerd", "20-containerd")];

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial_if("readers::skopeo_reads_both_layouts", lacks(&["mmdebstrap", "skopeo"]), skopeo),
        trial_if("readers::umoci_unpacks_both_layouts", lacks(&["mmdebstrap", "umoci"]), umoci),
        trial_if("readers::containerd_imports_both_layouts", lacks(&["mmdebstrap"]), containerd),
        trial_if(
            "readers::dockerd_pulls_and_runs_the_image_with_its_links_whole",
            lacks(&["mmdebstrap", "skopeo", "docker-registry"]),
            dockerd,
        ),
        trial_if("readers::only_the_named_keys_differ_from_the_base", lacks(&["mmdebstrap"]), difference),
        trial_if("readers::the_carved_image_is_at_most_half_its_base", lacks(&["mmdebstrap"]), carved_size),
    ]
}

pub(crate) fn run(command: &mut Command) -> Result<String, Failed> {
    let output = command.output()?;
    ensure(output.status.success(), format!("{command:?}: {}", crate::support::said(&output)))?;
    Ok(String::from_utf8(output.stdout)?)
}

fn skopeo() -> Result<(), Failed> {
    for (image, tag) in IMAGES {
        let layout = format!("oci:{}:{tag}", built()?.join(image).display());
        let seen: Value = serde_json::from_str(&run(Command::new("skopeo").args(["inspect", &layout]))?)?;
        ensure(seen["Architecture"] == "amd64" && seen["Os"] == "linux", format!("{seen}"))?;
        let config: Value = serde_json::from_str(&run(Command::new("skopeo").args(["inspect", "--config", &layout]))?)?;
        ensure(config["config"]["Entrypoint"][0] == "/usr/local/sbin/dind-init", format!("{config}"))?;
    }
    Ok(())
}

fn umoci() -> Result<(), Failed> {
    for (image, tag) in IMAGES {
        let folder = folder()?;
        let bundle = folder.path().join("bundle");
        let layout = format!("{}:{tag}", built()?.join(image).display());
        run(Command::new("umoci").args(["unpack", "--image", &layout]).arg(&bundle))?;
        let init = bundle.join("rootfs/usr/local/sbin/dind-init");
        ensure(fs::metadata(&init)?.is_file(), format!("{} is missing", init.display()))?;
        let config: Value = serde_json::from_slice(&fs::read(bundle.join("config.json"))?)?;
        ensure(config["process"]["args"][0] == "/usr/local/sbin/dind-init", format!("{}", config["process"]))?;
    }
    Ok(())
}

/// A container of the stand-in, in which the daemons of Debian run beside each other and disturb nothing on this machine.
pub(crate) struct Host<'a> {
    pub(crate) container: Box<dyn Container + 'a>,
}

impl<'a> Host<'a> {
    pub(crate) fn start(engine: &'a Namespaces, argv: &[&str], files: Vec<(PathBuf, PathBuf)>) -> Result<Self, Failed> {
        let standin = standin()?;
        let layout = Layout::open(&standin.layout)?;
        let image = xtask::stages::base::Image::read(&layout, &standin.post)?;
        let cache = repository().join("target/cache");
        let subject = Subject {
            name: "stand-in".to_owned(),
            digest: image.manifest.digest(),
            rootfs: xtask::stages::rootfs::unpacked(&image, &cache, &oci::Interrupt::default())?,
            config: RunConfig::default(),
            shadow: Vec::new(),
        };
        let launch = Launch {
            subject: &subject,
            argv: argv.iter().map(ToString::to_string).collect(),
            env: image.config.env().iter().map(ToString::to_string).collect(),
            input: Input::Nothing,
            files,
            volumes: vec!["/var/lib/docker".into(), "/var/lib/containerd".into()],
            pids_max: None,
        };
        Ok(Self { container: engine.start(&launch)? })
    }

    pub(crate) fn exec(&self, argv: &[&str]) -> Result<String, Failed> {
        let output = self.container.exec(argv, COMMAND_TIMEOUT)?;
        let said = || format!("{argv:?}: exit {}\n{}{}", output.code, output.stdout, output.stderr);
        ensure(output.code.0 == 0, said())?;
        Ok(output.stdout)
    }

    pub(crate) fn wait_until(&self, argv: &[&str]) -> Result<(), Failed> {
        let deadline = Instant::now() + READY_TIMEOUT;
        while self.container.exec(argv, COMMAND_TIMEOUT)?.code.0 != 0 {
            let log = || self.container.log().unwrap_or_default();
            ensure(Instant::now() < deadline, format!("{argv:?} did not succeed in {READY_TIMEOUT:?}\n{}", log()))?;
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }
}

fn containerd() -> Result<(), Failed> {
    let engine = crate::support::engine()?;
    let folder = folder()?;
    for (image, tag) in IMAGES {
        let archive = folder.path().join(format!("{image}.tar"));
        run(Command::new("tar")
            .arg("--create")
            .arg("--file")
            .arg(&archive)
            .arg("--directory")
            .arg(built()?.join(image))
            .arg("."))?;
        let host = Host::start(&engine, &["containerd"], vec![(archive, "/mnt/image.tar".into())])?;
        host.wait_until(&["ctr", "version"])?;
        host.exec(&["ctr", "image", "import", "--base-name", &format!("example.test/{image}"), "/mnt/image.tar"])?;
        let listed = host.exec(&["ctr", "image", "list", "--quiet"])?;
        ensure(listed.contains(tag), format!("expected {tag} among the images, found {listed}"))?;
        host.container.remove()?;
    }
    Ok(())
}

fn dockerd() -> Result<(), Failed> {
    let engine = crate::support::engine()?;
    let folder = folder()?;
    let seeded = {
        let registry = Registry::start(folder.path())?;
        seed(&registry, &built()?.join("dind"), "20-dind", "dind:20-dind")?;
        registry.storage().to_owned()
    };
    let config = folder.path().join("inner.yml");
    let text = configuration("127.0.0.1:5000", Path::new("/mnt/registry"))
        .replace("  delete:\n    enabled: true\n", "  maintenance:\n    readonly:\n      enabled: true\n");
    fs::write(&config, text)?;
    let program = xtask::tools::require("docker-registry")?;
    let files = vec![
        (program, "/mnt/docker-registry".into()),
        (config, "/mnt/registry.yml".into()),
        (seeded, "/mnt/registry".into()),
    ];
    let argv = [
        "dockerd",
        "--host=unix:///var/run/docker.sock",
        "--iptables=false",
        "--bridge=none",
        "--storage-driver=overlay2",
    ];
    let host = Host::start(&engine, &argv, files)?;
    host.wait_until(&["docker", "version"])?;
    host.exec(&["sh", "-c", "/mnt/docker-registry serve /mnt/registry.yml >/tmp/registry.log 2>&1 &"])?;
    host.wait_until(&["wget", "-q", "-O", "/dev/null", "http://127.0.0.1:5000/v2/"])?;
    host.exec(&["docker", "pull", "127.0.0.1:5000/dind:20-dind"])?;
    let script = "for link in /bin /sbin /lib; do readlink $link; done; stat -c '%a %n' / /usr /usr/local /usr/local/sbin /certs /certs/client /tmp /var/tmp /root; ls /usr/local/sbin";
    let derived = host.exec(&[
        "docker",
        "run",
        "--rm",
        "--network",
        "none",
        "--entrypoint",
        "sh",
        "127.0.0.1:5000/dind:20-dind",
        "-c",
        script,
    ])?;
    let base = host.exec(&["sh", "-c", script])?;
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
    let (derived, base) = (lines(&derived), lines(&base));
    ensure(base.first().is_some_and(|link| link == "usr/bin"), format!("the base is not usr-merged: {base:?}"))?;
    ensure(derived.starts_with(&base), format!("expected {base:?}, found {derived:?}"))?;
    ensure(derived[base.len()..] == ["containerd", "dind-init", "dockerd"], format!("{derived:?}"))?;
    host.container.remove()?;
    Ok(())
}

/// The derived and the base configuration of an image.
fn configs(image: &str) -> Result<(Value, Value), Failed> {
    let standin = standin()?;
    let base = Layout::open(&standin.layout)?;
    let base = config(&base, &standin.post)?;
    let derived = Layout::open(&built()?.join(image))?;
    let index = Index::parse(derived.bytes(&derived.index()?.manifests()[0])?)?;
    let derived = config(&derived, &index.manifests()[0])?;
    Ok((serde_json::from_slice(base.bytes())?, serde_json::from_slice(derived.bytes())?))
}

fn config(layout: &Layout, manifest: &Descriptor) -> Result<ImageConfig, Failed> {
    let manifest = Manifest::parse(layout.bytes(manifest)?)?;
    Ok(ImageConfig::parse(layout.bytes(manifest.config())?)?)
}

fn difference() -> Result<(), Failed> {
    let cases = [
        ("dind", &["/config/Entrypoint", "/config/Env", "/history", "/rootfs/diff_ids"][..]),
        (
            "containerd",
            &[
                "/config/Cmd",
                "/config/Entrypoint",
                "/config/Env",
                "/config/ExposedPorts",
                "/config/Volumes//var/lib/containerd",
                "/config/Volumes//var/lib/docker",
                "/history",
                "/rootfs/diff_ids",
            ],
        ),
    ];
    for (image, expected) in cases {
        let (base, derived) = configs(image)?;
        let mut found = Vec::new();
        compare("", &base, &derived, &mut found);
        found.sort();
        ensure(found == expected, format!("{image}: expected only {expected:?} to differ, found {found:?}"))?;
    }
    let (base, derived) = configs("dind")?;
    let env = |config: &Value| config["config"]["Env"].as_array().cloned().unwrap_or_default();
    let expected = [env(&base), vec!["TINI_SUBREAPER=".into()]].concat();
    ensure(env(&derived) == expected, format!("expected {expected:?}, found {:?}", env(&derived)))?;
    let (before, after) = (base["history"].as_array(), derived["history"].as_array());
    let (before, after) = before.zip(after).ok_or("no history")?;
    ensure(
        after.len() == before.len() + 1 && after.starts_with(before),
        "expected the base's history and one entry more",
    )
}

/// The paths at which two JSON values differ; arrays count as a whole.
fn compare(path: &str, left: &Value, right: &Value, found: &mut Vec<String>) {
    match (left, right) {
        (Value::Object(left), Value::Object(right)) => {
            let keys: std::collections::BTreeSet<_> = left.keys().chain(right.keys()).collect();
            for key in keys {
                let absent = Value::Null;
                compare(
                    &format!("{path}/{key}"),
                    left.get(key).unwrap_or(&absent),
                    right.get(key).unwrap_or(&absent),
                    found,
                );
            }
        }
        _ if left != right => found.push(path.to_owned()),
        _ => {}
    }
}

fn carved_size() -> Result<(), Failed> {
    let record: Value = serde_json::from_slice(&fs::read(built()?.join("digests.json"))?)?;
    let images = record["images"].as_array().ok_or("no images")?;
    let carved = images.iter().find(|image| image["name"] == "containerd").ok_or("no containerd image")?;
    let standin = standin()?;
    let layout = Layout::open(&standin.layout)?;
    let base = xtask::stages::base::Image::read(&layout, &standin.post)?;
    let base: u64 = base.blobs().map(|blob| blob.size).sum();
    let size = carved["platforms"]["linux/amd64"]["size"].as_u64().ok_or("no size")?;
    ensure(size * 2 <= base, format!("expected at most half of {base} bytes, found {size}"))
}

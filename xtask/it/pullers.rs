//! What others make of a registry that we published to: skopeo, umoci, buildah, podman, a real containerd and a real dockerd 20.10 take
//! the stand-in's images as our own commands have put them there, in Docker's types and in OCI's. skopeo is a reader only: it published
//! nothing here. Never judges what the images do; the suite does.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use libtest_mimic::{Failed, Trial};
use oci::{Client, Descriptor, Digest, Document, Family, Index, Layout, Manifest, Options, Reference, Repository};
use serde_json::Value;
use xtask::bench::{Registry, read_only};

use crate::host::Host;
use crate::shop::{digest_of, done};
use crate::support::{command, definitions, ensure, folder, lacks, repository, run, standin, trial_if};

/// Both families, by the names of their repositories.
const FAMILIES: [(&str, Family); 2] = [("oci", Family::Oci), ("docker", Family::Docker)];

pub(crate) fn trials() -> Vec<Trial> {
    let with = |tools: &[&str]| lacks(&[&["mmdebstrap", "docker-registry"], tools].concat());
    vec![
        trial_if("pullers::f07_skopeo_and_umoci_take_what_we_publish", with(&["skopeo", "umoci"]), skopeo),
        trial_if("pullers::f07_buildah_pulls_what_we_publish", with(&["buildah"]), buildah),
        trial_if("pullers::f07_podman_pulls_what_we_publish", with(&["podman"]), podman),
        trial_if("pullers::f07_dockerd_and_containerd_pull_and_run_what_we_publish", with(&[]), daemons),
    ]
}

/// What we published, and a registry of the trial's own that serves it.
struct Market {
    folder: tempfile::TempDir,
    registry: Registry,
    stock: &'static Stock,
}

impl Market {
    fn open() -> Result<Self, Failed> {
        let stock = Stock::published()?;
        let folder = folder()?;
        std::os::unix::fs::symlink(&stock.storage, folder.path().join("registry"))?;
        let registry = Registry::configured(folder.path(), |text| read_only(&text))?;
        Ok(Self { folder, registry, stock })
    }

    fn index(&self, name: &str) -> String {
        self.stock.published[name][0].to_string()
    }

    fn image(&self, name: &str) -> String {
        format!("{}/{name}/dind:20-dind", self.registry.host())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}

/// What a registry has on disk after our commands published the dind image in both families; made once for all trials.
struct Stock {
    storage: PathBuf,
    /// The index and its one manifest, by the first folder of their repositories.
    published: BTreeMap<&'static str, [Digest; 2]>,
}

impl Stock {
    fn published() -> Result<&'static Self, Failed> {
        static STOCK: OnceLock<Result<Stock, String>> = OnceLock::new();
        let publish = || {
            let folder = repository().join("target/tests/stock");
            if folder.exists() {
                fs::remove_dir_all(&folder)?;
            }
            fs::create_dir_all(&folder)?;
            let publishing = Publishing { registry: Registry::start(&folder)?, images: definitions(&folder)?, folder };
            let published = FAMILIES.iter().map(|(name, family)| Ok((*name, publishing.publish(name, *family)?)));
            let published = published.collect::<Result<_, Failed>>()?;
            Ok(Self { storage: publishing.registry.storage().to_owned(), published })
        };
        let stock = STOCK.get_or_init(|| publish().map_err(|error: Failed| format!("{error:?}")));
        stock.as_ref().map_err(|error| error.clone().into())
    }
}

/// A registry while we publish to it.
struct Publishing {
    registry: Registry,
    images: PathBuf,
    folder: PathBuf,
}

impl Publishing {
    /// Publishes dind, derived from a base of these types, and returns its index and manifest. Both ways are gone: at once, and later from the record.
    fn publish(&self, name: &str, family: Family) -> Result<[Digest; 2], Failed> {
        self.base(family)?;
        // What the reference names here is not what the repository's lock says of it.
        fs::write(self.images.join("bases.lock"), "")?;
        let out = self.folder.join(name);
        let to = format!("{}/{name}/dind", self.registry.host());
        match family {
            Family::Docker => {
                self.build(&out, &["--push", &to, "--allow-unjudged"])?;
                recorded(&out)
            }
            Family::Oci => {
                self.build(&out, &[])?;
                let output = command(["publish", &to, "--allow-unjudged", "--out"]).arg(&out).output()?;
                done(&output)?;
                let [index, manifest] = recorded(&out)?;
                let said = String::from_utf8_lossy(&output.stdout);
                ensure(said == format!("{to}@{index}\n"), said)?;
                Ok([index, manifest])
            }
        }
    }

    /// Puts the stand-in under docker:20-dind, in these types.
    fn base(&self, family: Family) -> Result<(), Failed> {
        let standin = standin()?;
        let layout = Layout::open(&standin.layout)?;
        let mut edit = Manifest::parse(layout.bytes(&standin.post)?)?.edit();
        edit.family(family);
        let manifest = edit.finish();
        let blobs: Vec<Descriptor> = std::iter::once(manifest.config()).chain(manifest.layers()).cloned().collect();
        let index = Index::new(family, &[manifest.descriptor().with_platform(oci::Platform::parse("linux/amd64")?)])?;
        let to = Repository::parse(&format!("{}/library/docker", self.registry.host()))?;
        let client = Client::new(Options::default())?;
        client.push_blobs(&to, &blobs, &layout, &oci::Silent)?;
        let pinned = Reference::Pinned(to.pinned(manifest.digest()));
        client.put_manifest(&pinned, manifest.media_type(), manifest.bytes())?;
        client.put_manifest(&Reference::Tagged(to.tagged("20-dind")?), index.media_type(), index.bytes())?;
        Ok(())
    }

    fn build(&self, out: &Path, more: &[&str]) -> Result<(), Failed> {
        let mirror = format!("docker.io=http://{}", self.registry.host());
        let mut build = command(["build-images", "dind", "--base", "registry", "--mirror", &mirror, "--suite", "none"]);
        build.arg("--images").arg(&self.images).arg("--out").arg(out).args(more);
        done(&build.output()?)
    }
}

/// The index and the manifest of the one image in a record.
fn recorded(out: &Path) -> Result<[Digest; 2], Failed> {
    let record: Value = serde_json::from_slice(&fs::read(out.join("digests.json"))?)?;
    let manifest = record["images"][0]["platforms"]["linux/amd64"]["digest"].as_str().ok_or("no manifest")?;
    Ok([digest_of(&record, 0)?, Digest::parse(manifest)?])
}

fn skopeo() -> Result<(), Failed> {
    let market = Market::open()?;
    for (name, family) in FAMILIES {
        let image = format!("docker://{}", market.image(name));
        let inspect =
            |more: &[&str]| run(Command::new("skopeo").args(["inspect", "--tls-verify=false"]).args(more).arg(&image));
        let seen: Value = serde_json::from_str(&inspect(&[])?)?;
        ensure(seen["Digest"] == market.index(name), format!("{name}: {seen}"))?;
        ensure(seen["Architecture"] == "amd64" && seen["Os"] == "linux", format!("{name}: {seen}"))?;
        let raw = inspect(&["--raw"])?;
        ensure(Digest::of(raw.as_bytes()).to_string() == market.index(name), format!("{name}: other bytes: {raw}"))?;
        let Document::Index(index) = Document::parse(raw.into_bytes())? else { return Err("no index".into()) };
        ensure(index.family() == family, format!("{name}: {}", index.media_type()))?;

        let layout = format!("oci:{}:copy", market.path(&format!("{name}-layout")).display());
        let archive =
            format!("docker-archive:{}:example.test/dind:copy", market.path(&format!("{name}.tar")).display());
        for target in [&layout, &archive] {
            run(Command::new("skopeo").args(["copy", "--quiet", "--src-tls-verify=false", &image, target]))?;
            let config: Value =
                serde_json::from_str(&run(Command::new("skopeo").args(["inspect", "--config", target]))?)?;
            ensure(config["config"]["Entrypoint"][0] == "/usr/local/sbin/dind-init", format!("{target}: {config}"))?;
        }
        let bundle = market.path(&format!("{name}-bundle"));
        let copy = layout.trim_start_matches("oci:");
        run(Command::new("umoci").args(["unpack", "--image", copy]).arg(&bundle))?;
        let init = fs::metadata(bundle.join("rootfs/usr/local/sbin/dind-init"))?;
        ensure(init.is_file(), format!("{name}: the init is no file"))?;
        let links = fs::read_link(bundle.join("rootfs/bin"))?;
        ensure(links == Path::new("usr/bin"), format!("{name}: /bin leads to {}", links.display()))?;
    }
    Ok(())
}

fn buildah() -> Result<(), Failed> {
    stored("buildah")
}

fn podman() -> Result<(), Failed> {
    stored("podman")
}

/// Pulls by a program that keeps images in a store, in a store of the trial, and asks what it has.
fn stored(program: &str) -> Result<(), Failed> {
    let market = Market::open()?;
    // Beside the store there is a state, and locks, which would lie below /run and in /dev/shm. podman takes no longer path than 50 bytes.
    let state = tempfile::tempdir()?;
    let config = format!("[engine]\nlock_type = \"file\"\ntmp_dir = \"{}/tmp\"\n", state.path().display());
    fs::write(state.path().join("containers.conf"), config)?;
    for (name, _) in FAMILIES {
        let store = |arguments: &[&str]| {
            let mut command = Command::new(program);
            command.env("CONTAINERS_CONF", state.path().join("containers.conf"));
            command.arg("--root").arg(market.path("store")).arg("--runroot").arg(state.path().join("run"));
            run(command.args(["--storage-driver", "vfs"]).args(arguments))
        };
        store(&["pull", "--quiet", "--tls-verify=false", &market.image(name)])?;
        let inspect: &[&str] =
            if program == "buildah" { &["inspect", "--type", "image"] } else { &["image", "inspect"] };
        let seen = store(&[inspect, &[&market.image(name)]].concat())?;
        let manifest = market.stock.published[name][1].to_string();
        for expected in ["/usr/local/sbin/dind-init", &manifest] {
            ensure(seen.contains(expected), format!("{name}: expected {expected}, found {seen}"))?;
        }
        store(&["rmi", &market.image(name)])?;
    }
    Ok(())
}

fn daemons() -> Result<(), Failed> {
    let engine = crate::support::engine()?;
    let market = Market::open()?;
    let host = Host::with_registry(&engine, market.folder.path(), &market.stock.storage)?;
    for (name, _) in FAMILIES {
        containerd(&host, name, &market.index(name))?;
        dockerd(&host, name, &market.index(name))?;
    }
    host.remove()
}

/// The containerd below dockerd pulls by itself, in a namespace of its own.
fn containerd(host: &Host<'_>, name: &str, index: &str) -> Result<(), Failed> {
    let image = format!("127.0.0.1:5000/{name}/dind:20-dind");
    let ctr = |arguments: &[&str]| {
        host.exec(
            &[&["ctr", "--address", "/var/run/docker/containerd/containerd.sock", "--namespace", name], arguments]
                .concat(),
        )
    };
    ctr(&["image", "pull", "--plain-http", "--snapshotter", "native", &image])?;
    let listed = ctr(&["image", "list"])?;
    ensure(listed.contains(index), format!("{name}: expected {index}, found {listed}"))?;
    let printed = ctr(&[
        "run",
        "--rm",
        "--snapshotter",
        "native",
        &image,
        "trial",
        "/usr/local/sbin/dind-init",
        "--",
        "sh",
        "-c",
        FIRST,
    ])?;
    ensure(printed == BY_OURS, format!("{name}: {printed}"))
}

/// Who is PID 1?
const FIRST: &str = "cat /proc/1/comm; readlink /proc/1/exe; echo $PPID";
/// The answer where it is ours, and the shell is its child.
const BY_OURS: &str = "dind-init\n/usr/local/sbin/dind-init\n1\n";

fn dockerd(host: &Host<'_>, name: &str, index: &str) -> Result<(), Failed> {
    let image = format!("127.0.0.1:5000/{name}/dind:20-dind");
    host.exec(&["docker", "pull", "--quiet", &image])?;
    let digests = host.exec(&["docker", "image", "inspect", "--format", "{{.RepoDigests}}", &image])?;
    ensure(digests.contains(index), format!("{name}: expected {index}, found {digests}"))?;
    let docker_run =
        |arguments: &[&str]| host.exec(&[&["docker", "run", "--rm", "--network", "none"], arguments].concat());
    // By the image's own entrypoint.
    let printed = docker_run(&[&image, "sh", "-c", FIRST])?;
    ensure(printed == BY_OURS, format!("{name}: {printed}"))?;
    // The layer lies on the base without a link replaced or a mode changed.
    let script = "for link in /bin /sbin /lib; do readlink $link; done; stat -c '%a %n' / /usr /usr/local /usr/local/sbin /certs /certs/client /tmp /var/tmp /root; ls /usr/local/sbin";
    let derived = docker_run(&["--entrypoint", "sh", &image, "-c", script])?;
    let base = host.exec(&["sh", "-c", script])?;
    ensure(base.starts_with("usr/bin\n"), format!("the base is not usr-merged: {base}"))?;
    ensure(derived == format!("{base}containerd\ndind-init\ndockerd\n"), format!("expected {base}, found {derived}"))
}

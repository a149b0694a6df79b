//! The pipeline as a user runs it: real processes, a real registry, the real stand-in. What is judged at length is judged by
//! `cargo xtask test` itself; here the images are mostly built without the suite.

use std::fs;
use std::path::Path;
use std::process::Command;

use libtest_mimic::{Failed, Trial};
use oci::{Digest, Layout};
use serde_json::Value;
use xtask::bench::Registry;

use crate::registry::seed;
use crate::shop::{done, refused};
use crate::support::{command, ensure, lacks, said, trial_if};
use crate::workbench::{AMD64, NOBODY, Workbench};

pub(crate) fn trials() -> Vec<Trial> {
    let standin = lacks(&["mmdebstrap"]);
    let registry = lacks(&["mmdebstrap", "skopeo", "docker-registry"]);
    vec![
        trial_if("pipeline::built_twice_the_digests_are_the_same", standin.clone(), twice),
        trial_if("pipeline::what_is_unchanged_is_not_built_again", standin.clone(), unchanged),
        trial_if("pipeline::without_the_suite_nothing_has_passed", standin.clone(), unjudged),
        trial_if("pipeline::a_source_date_epoch_is_the_only_clock", standin.clone(), epoch),
        trial_if("pipeline::f18_every_listed_platform_is_in_the_index", standin.clone(), every_platform),
        trial_if("pipeline::a_full_disk_is_an_error_that_a_later_run_survives", standin.clone(), full_disk),
        trial_if("pipeline::a_missing_tool_is_named_with_its_cure", standin.clone(), missing_tool),
        trial_if("pipeline::without_root_it_says_so", standin, no_root),
        trial_if("pipeline::a_base_is_pulled_by_its_locked_digest", registry.clone(), pulled),
        trial_if("pipeline::a_missing_lock_entry_is_resolved_once", registry.clone(), resolved),
        trial_if("pipeline::f22_a_lock_that_names_other_digests_is_refused", registry.clone(), wrong_lock),
        trial_if("pipeline::a_damaged_base_is_refused_and_not_kept", registry.clone(), damaged),
        trial_if("pipeline::a_ca_file_that_is_missing_is_named", lacks(&[]), missing_ca),
        trial_if("pipeline::an_index_within_the_index_is_refused", registry.clone(), nested),
        trial_if("pipeline::a_platform_that_the_base_lacks_is_refused", registry.clone(), no_platform),
        trial_if("pipeline::an_unreachable_registry_is_an_error_or_the_stand_in", registry, unreachable),
    ]
}

fn twice() -> Result<(), Failed> {
    let bench = Workbench::new()?;
    let digests = |out: &str| -> Result<Vec<Value>, Failed> {
        done(&bench.build(out, &["--base", "standin", "--suite", "none", "--fresh"])?)?;
        let record = bench.record(out)?;
        let images = record["images"].as_array().ok_or("no images")?;
        Ok(images.iter().map(|image| image["digest"].clone()).collect())
    };
    let (first, second) = (digests("first")?, digests("second")?);
    ensure(first.len() == 3 && first == second, format!("first {first:?}, second {second:?}"))
}

fn unchanged() -> Result<(), Failed> {
    let bench = Workbench::new()?;
    let arguments = ["--base", "standin", "--suite", "none"];
    done(&bench.build("out", &arguments)?)?;
    let layer_time =
        |bench: &Workbench| -> Result<_, Failed> { Ok(fs::metadata(bench.path("out/dind/index.json"))?.modified()?) };
    let before = layer_time(&bench)?;
    let again = bench.build("out", &arguments)?;
    done(&again)?;
    ensure(String::from_utf8_lossy(&again.stderr).contains("unchanged"), said(&again))?;
    ensure(layer_time(&bench)? == before, "the layout was written again")?;
    let fresh = bench.build("out", &[&arguments[..], &["--fresh"]].concat())?;
    done(&fresh)?;
    ensure(!String::from_utf8_lossy(&fresh.stderr).contains("unchanged"), said(&fresh))
}

fn unjudged() -> Result<(), Failed> {
    let bench = Workbench::new()?;
    let output = bench.build("out", &["--base", "standin", "--suite", "none", "dind"])?;
    done(&output)?;
    ensure(output.stdout.is_empty(), format!("nothing passed, yet stdout names an image, {}", said(&output)))?;
    let record = bench.record("out")?;
    let dind = &record["images"][0];
    ensure(dind["base"]["source"] == "standin", format!("{dind}"))?;
    let platform = &dind["platforms"][AMD64];
    ensure(platform["verdict"] == Value::Null && platform["unjudged"] == "--suite none", format!("{platform}"))
}

fn epoch() -> Result<(), Failed> {
    let bench = Workbench::new()?;
    let mut command = command(["build-images", "dind", "--base", "standin", "--suite", "none", "--images"]);
    command.arg(bench.path("images")).arg("--out").arg(bench.path("out")).env("SOURCE_DATE_EPOCH", "1600000000");
    done(&command.output()?)?;
    let layout = Layout::open(&bench.path("out/dind"))?;
    let record = bench.record("out")?;
    let config = Digest::parse(record["images"][0]["platforms"][AMD64]["config"].as_str().ok_or("no config")?)?;
    let config: Value = serde_json::from_slice(&fs::read(layout.blob_path(&config))?)?;
    ensure(config["created"] == "2020-09-13T12:26:40Z", format!("created: {}", config["created"]))?;
    let history = config["history"].as_array().and_then(|history| history.last()).ok_or("no history")?;
    ensure(history["created"] == "2020-09-13T12:26:40Z", format!("history: {history}"))
}

fn every_platform() -> Result<(), Failed> {
    let bench = Workbench::new()?;
    let mut command =
        command(["build-images", "dind", "--base", "standin", "--all-platforms", "--suite", "none", "--out"]);
    done(&command.arg(bench.path("out")).output()?)?;
    let layout = Layout::open(&bench.path("out/dind"))?;
    let index = oci::Index::parse(layout.bytes(&layout.index()?.manifests()[0])?)?;
    let mut inits = std::collections::BTreeSet::new();
    let record = bench.record("out")?;
    for platform in ["linux/amd64", "linux/arm64/v8"] {
        let child = index.select(&oci::Platform::parse(platform)?)?;
        let manifest = oci::Manifest::parse(layout.bytes(child)?)?;
        let config = oci::ImageConfig::parse(layout.bytes(manifest.config())?)?;
        ensure(config.platform().to_string() == platform, format!("{platform}: found {}", config.platform()))?;
        let recorded = &record["images"][0]["platforms"][platform];
        ensure(recorded["digest"] == child.digest.to_string(), format!("{platform}: {recorded}"))?;
        inits.insert(recorded["init"]["sha256"].to_string());
    }
    ensure(
        index.manifests().len() == 2 && inits.len() == 2,
        format!("expected two platforms with an init each, found {inits:?}"),
    )
}

/// A tmpfs that is too small for the layouts, unmounted with its guard.
struct SmallDisk<'a>(&'a Path);

impl<'a> SmallDisk<'a> {
    fn mount(place: &'a Path) -> Result<Self, Failed> {
        fs::create_dir_all(place)?;
        let status = Command::new("mount").args(["-t", "tmpfs", "-o", "size=1m", "tmpfs"]).arg(place).status()?;
        ensure(status.success(), "mount a small tmpfs")?;
        Ok(Self(place))
    }
}

impl Drop for SmallDisk<'_> {
    fn drop(&mut self) {
        // A mount that stays is seen by the trial's folder, which then cannot be removed.
        let _ = Command::new("umount").arg(self.0).status();
    }
}

fn full_disk() -> Result<(), Failed> {
    let bench = Workbench::new()?;
    let place = bench.path("small");
    {
        let _disk = SmallDisk::mount(&place)?;
        refused(&bench.build("small", &["--base", "standin", "--suite", "none"])?, &["No space left on device"])?;
        ensure(!place.join("digests.json").exists(), "a record was written")?;
        ensure(
            !place.join("containerd/index.json").exists()
                || fs::read(place.join("containerd/index.json"))?.is_empty()
                || Layout::open(&place.join("containerd"))?.index()?.manifests().is_empty(),
            "an image became visible",
        )?;
    }
    done(&bench.build("small", &["--base", "standin", "--suite", "none"])?)
}

fn missing_tool() -> Result<(), Failed> {
    let bench = Workbench::new()?;
    let output = command(["build-images", "--base", "standin", "--suite", "none", "--out"])
        .arg(bench.path("out"))
        .env("PATH", bench.path("nothing"))
        .output()?;
    refused(&output, &["cargo xtask setup"])
}

fn no_root() -> Result<(), Failed> {
    let bench = Workbench::new()?;
    let output = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .arg(env!("CARGO_BIN_EXE_xtask"))
        .args(["build-images", "--base", "standin", "--out"])
        .arg(bench.path("out"))
        .output()?;
    refused(&output, &["expected root", "found uid 65534", "hint:"])
}

fn pulled() -> Result<(), Failed> {
    let bench = Workbench::new()?;
    let (_registry, mirror, seeded) = bench.registry()?;
    let lock = fs::read_to_string(bench.path("images/bases.lock"))?;
    done(&bench.build("out", &["--base", "registry", "--mirror", &mirror, "--locked", "--suite", "none"])?)?;
    ensure(fs::read_to_string(bench.path("images/bases.lock"))? == lock, "the lock was rewritten")?;
    let record = bench.record("out")?;
    let with_a_base = |image: &&Value| image["name"] != "init";
    for image in record["images"].as_array().ok_or("no images")?.iter().filter(with_a_base) {
        ensure(image["base"]["source"] == "registry", format!("{image}"))?;
        ensure(image["base"]["name"] == "docker.io/library/docker:20-dind", format!("{image}"))?;
        ensure(image["base"]["digest"] == seeded.index.to_string(), format!("{image}"))?;
        ensure(image["platforms"][AMD64]["base"] == seeded.amd64.to_string(), format!("{image}"))?;
    }
    // The whole image holds every layer of its base, as received, under ours.
    let dind = Layout::open(&bench.path("out/dind"))?;
    let index = oci::Index::parse(dind.bytes(&dind.index()?.manifests()[0])?)?;
    let derived = oci::Manifest::parse(dind.bytes(&index.manifests()[0])?)?;
    let base = oci::Manifest::parse(fs::read(seeded.layout.blob_path(&seeded.amd64))?)?;
    ensure(derived.layers().len() == base.layers().len() + 1, "expected one layer more than the base has")?;
    ensure(derived.layers().starts_with(base.layers()), "the base's layers are not the first ones")
}

fn resolved() -> Result<(), Failed> {
    let bench = Workbench::new()?;
    let (_registry, mirror, seeded) = bench.registry()?;
    fs::write(bench.path("images/bases.lock"), "")?;
    let arguments = ["--base", "registry", "--mirror", &mirror, "--suite", "none", "dind"];
    refused(&bench.build("out", &[&arguments[..], &["--locked"]].concat())?, &["not in bases.lock", "--locked"])?;
    done(&bench.build("out", &arguments)?)?;
    let lock = fs::read_to_string(bench.path("images/bases.lock"))?;
    for expected in [seeded.index.to_string(), format!("{AMD64}: {}", seeded.amd64)] {
        ensure(lock.contains(&expected), format!("expected {expected} in\n{lock}"))?;
    }
    done(&bench.build("out", &[&arguments[..], &["--locked"]].concat())?)
}

fn wrong_lock() -> Result<(), Failed> {
    let bench = Workbench::new()?;
    let (_registry, mirror, seeded) = bench.registry()?;
    let other = Digest::of(b"another image");
    let arguments = ["--base", "registry", "--mirror", &mirror, "--suite", "none", "dind"];
    bench.lock(&seeded.index, &other)?;
    refused(&bench.build("out", &arguments)?, &[&other.to_string(), &seeded.amd64.to_string(), "bases.lock"])?;
    bench.lock(&other, &seeded.amd64)?;
    refused(&bench.build("out", &arguments)?, &[&other.to_string(), "not found"])
}

/// A base whose blobs nobody has pulled before on this machine, so that the cache cannot answer in the registry's place.
fn rare_base(bench: &Workbench, registry: &Registry, content: &[u8]) -> Result<Digest, Failed> {
    let layout = Layout::open_or_create(&bench.path("rare"))?;
    let created = oci::Timestamp::from_epoch(1_600_000_000)?;
    let mut layer = oci::LayerWriter::new(&layout, created)?;
    layer.file("etc/rare", oci::Permissions::root(0o644), content)?;
    let layer = layer.finish()?;
    let platform = oci::Platform::parse(AMD64)?;
    let mut edit = oci::ImageConfig::new(&platform, created).edit();
    let history = oci::History { created, created_by: "trial".to_owned(), comment: String::new() };
    let config = edit.append_layer(layer.diff_id, &history).finish();
    let config = layout.put(&config.descriptor().media_type, config.bytes())?;
    let manifest = oci::Manifest::new(oci::Family::Oci, &config, std::slice::from_ref(&layer.descriptor));
    layout.put(manifest.media_type(), manifest.bytes())?;
    let index = oci::Index::new(oci::Family::Oci, &[manifest.descriptor().with_platform(platform)])?;
    layout.put(index.media_type(), index.bytes())?;
    layout.write_index(&[index.descriptor().with_ref_name("20-dind")])?;
    seed(registry, layout.dir(), "20-dind", "library/docker:20-dind")?;
    bench.lock(&index.digest(), &manifest.digest())?;
    Ok(layer.descriptor.digest)
}

fn damaged() -> Result<(), Failed> {
    let bench = Workbench::new()?;
    let registry = Registry::start(bench.folder.path())?;
    let mirror = format!("docker.io=http://{}", registry.host());
    let arguments = ["--base", "registry", "--mirror", &mirror, "--suite", "none", "dind"];
    // Other bytes of the same length, and then fewer bytes than promised. The name of the trial's folder makes the layer new each time.
    for (content, damage) in [(&b"one"[..], flip as fn(Vec<u8>) -> Vec<u8>), (&b"two"[..], cut)] {
        let content = [content, bench.folder.path().as_os_str().as_encoded_bytes()].concat();
        let layer = rare_base(&bench, &registry, &content)?;
        let path = registry.blob(&layer);
        let whole = fs::read(&path)?;
        fs::write(&path, damage(whole.clone()))?;
        refused(&bench.build("out", &arguments)?, &[&layer.to_string()])?;
        let kept = crate::support::repository().join("target/cache/bases/blobs/sha256").join(layer.hex());
        ensure(!kept.exists(), format!("{} was kept", kept.display()))?;
        fs::write(&path, whole)?;
        // Whole again, the base is pulled; that it is no Docker image is then found by the proof.
        refused(&bench.build("out", &arguments)?, &["prove"])?;
        fs::remove_dir_all(bench.path("rare"))?;
        fs::remove_file(kept)?;
    }
    Ok(())
}

fn nested() -> Result<(), Failed> {
    let bench = Workbench::new()?;
    let registry = Registry::start(bench.folder.path())?;
    let client = oci::Client::new(oci::Options::default())?;
    let to = oci::Repository::parse(&format!("{}/library/docker", registry.host()))?;
    let inner = oci::Index::new(oci::Family::Oci, &[])?;
    client.put_manifest(&oci::Reference::Pinned(to.pinned(inner.digest())), inner.media_type(), inner.bytes())?;
    let entry = inner.descriptor().with_platform(oci::Platform::parse(AMD64)?);
    let outer = oci::Index::new(oci::Family::Oci, &[entry])?;
    client.put_manifest(&oci::Reference::Tagged(to.tagged("20-dind")?), outer.media_type(), outer.bytes())?;
    bench.lock(&outer.digest(), &inner.digest())?;
    let mirror = format!("docker.io=http://{}", registry.host());
    let output = bench.build("out", &["--base", "registry", "--mirror", &mirror, "--suite", "none", "dind"])?;
    refused(&output, &["docker:20-dind", &inner.digest().to_string(), "expected an image manifest, found an index"])
}

fn missing_ca() -> Result<(), Failed> {
    let mirror = ["--base", "registry", "--mirror", "docker.io=https://127.0.0.1:1", "--ca", "missing.pem"];
    refused(&Workbench::new()?.build("out", &mirror)?, &["open CA certificates /", "/missing.pem: No such file"])
}

fn flip(mut bytes: Vec<u8>) -> Vec<u8> {
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    bytes
}

fn cut(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.truncate(bytes.len() / 2);
    bytes
}

fn no_platform() -> Result<(), Failed> {
    let bench = Workbench::new()?;
    let (_registry, mirror, _) = bench.registry()?;
    let output = command([
        "build-images",
        "dind",
        "--base",
        "registry",
        "--platform",
        "linux/arm64",
        "--suite",
        "none",
        "--mirror",
        &mirror,
    ])
    .arg("--images")
    .arg(bench.path("images"))
    .arg("--out")
    .arg(bench.path("out"))
    .output()?;
    refused(&output, &["linux/arm64", "linux/amd64"])
}

fn unreachable() -> Result<(), Failed> {
    let bench = Workbench::new()?;
    let mirror = format!("docker.io=http://{NOBODY}");
    bench.lock(&Digest::of(b"not in any cache"), &Digest::of(b"nor this"))?;
    let arguments = |base| ["--base", base, "--mirror", &mirror, "--suite", "none", "dind"];
    // The registry itself was asked too.
    refused(&bench.build_cut_off("out", &arguments("registry"))?, &["registry-1.docker.io", NOBODY])?;
    let output = bench.build_cut_off("out", &arguments("auto"))?;
    done(&output)?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure(errors.contains("no registry reachable") && errors.contains("stand-in"), said(&output))?;
    ensure(bench.record("out")?["images"][0]["base"]["source"] == "standin", "the record does not name the stand-in")?;
    refused(
        &bench.build(
            "out",
            &["--base", "registry", "--mirror", "docker.io=http://192.0.2.1", "--suite", "none", "dind"],
        )?,
        &["plain http", "192.0.2.1"],
    )
}

//! Bases that others really publish: odd ones, from which an image is derived all the same with a warning, and wrong ones, which are
//! refused. Each is a small layout of the published base's shape, in a real registry.

use std::process::Output;

use libtest_mimic::{Failed, Trial};
use oci::{
    Client, Descriptor, Digest, ImageConfig, Index, LayerWriter, Layout, Manifest, Options, Permissions, Platform,
    Reference, Silent, Timestamp,
};
use serde_json::{Value, json};

use xtask::bench::Registry;

use crate::shop::{done, refused};
use crate::support::{ensure, lacks, said, trial_if};
use crate::workbench::{AMD64, Workbench};

/// `e_machine` of x86-64 and of AArch64 (elf(5)).
const X86_64: u8 = 62;
const AARCH64: u8 = 183;

const OCI_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const OCI_INDEX: &str = "application/vnd.oci.image.index.v1+json";

pub(crate) fn trials() -> Vec<Trial> {
    let missing = lacks(&["docker-registry"]);
    vec![
        trial_if("bases::a_plain_base_derives_without_a_warning", missing.clone(), plain),
        trial_if("bases::f04_media_types_of_two_families_are_a_warning", missing.clone(), mixed),
        trial_if("bases::f13_a_history_that_does_not_fit_is_a_warning", missing.clone(), history),
        trial_if("bases::f17_another_variant_is_a_warning_and_another_architecture_an_error", missing.clone(), variant),
        trial_if("bases::f19_attestations_are_left_out_and_reported", missing.clone(), attestations),
        trial_if("bases::f16_f24_the_bases_identity_does_not_survive", missing.clone(), identity),
        trial_if("bases::a_daemon_of_another_machine_is_refused", missing, machine),
    ]
}

/// What makes a base odd: edits of its documents, in the order in which they are made.
struct Odd {
    /// `e_machine` of its dockerd.
    dockerd: u8,
    config: fn(&mut Value),
    manifest: fn(&mut Value),
    /// Whether its index has an attestation beside the image.
    attested: bool,
}

/// A base in which nothing is odd.
const PLAIN: Odd = Odd { dockerd: X86_64, config: |_| (), manifest: |_| (), attested: false };

/// What came of deriving `dind` from a base.
struct Derived {
    bench: Workbench,
    output: Output,
    base: Descriptor,
    index: Index,
}

impl Odd {
    /// Publishes this base as docker:20-dind, locks it, and builds `dind` from it after `edit` of the definition.
    fn derive(&self, edit: fn(String) -> String) -> Result<Derived, Failed> {
        let bench = Workbench::new()?;
        let registry = Registry::start(bench.folder.path())?;
        let (base, index) = self.publish(&bench, &registry)?;
        bench.lock(&index.digest(), &base.digest)?;
        let definition = bench.path("images/dind.yaml");
        std::fs::write(&definition, edit(std::fs::read_to_string(&definition)?))?;
        let mirror = format!("docker.io=http://{}", registry.host());
        let output = bench.build("out", &["--base", "registry", "--mirror", &mirror, "--suite", "none", "dind"])?;
        Ok(Derived { bench, output, base, index })
    }

    fn publish(&self, bench: &Workbench, registry: &Registry) -> Result<(Descriptor, Index), Failed> {
        let layout = Layout::open_or_create(&bench.path("base"))?;
        let client = Client::new(Options::default())?;
        let repository = oci::Repository::parse(&format!("{}/library/docker", registry.host()))?;
        let layer = self.layer(&layout)?;
        let created = Timestamp::from_epoch(1_600_000_000)?;
        let history = oci::History { created, created_by: "trial".to_owned(), comment: String::new() };
        let mut config = ImageConfig::new(&Platform::parse(AMD64)?, created).edit();
        config.set_env("PATH", "/usr/local/sbin:/usr/local/bin:/bin").append_layer(layer.diff_id, &history);
        let config = edited(config.finish().bytes(), self.config)?;
        let config = layout.put("application/vnd.oci.image.config.v1+json", &config)?;
        let manifest = Manifest::new(oci::Family::Oci, &config, std::slice::from_ref(&layer.descriptor));
        let manifest = Manifest::parse(edited(manifest.bytes(), self.manifest)?)?;
        for blob in [&layer.descriptor, &config] {
            client.push_blob(&repository, blob, &layout, &Silent)?;
        }
        let by_digest = |digest: &Digest| Reference::parse(&format!("{repository}@{digest}"));
        client.put_manifest(&by_digest(&manifest.digest())?, OCI_MANIFEST, manifest.bytes())?;
        let mut entries = vec![manifest.descriptor().with_platform(Platform::parse(AMD64)?)];
        if self.attested {
            let attestation = edited(manifest.bytes(), |manifest| manifest["annotations"] = json!({"of": "the base"}))?;
            client.put_manifest(&by_digest(&Digest::of(&attestation))?, OCI_MANIFEST, &attestation)?;
            let mut entry =
                Descriptor::of(OCI_MANIFEST, &attestation).with_platform(Platform::parse("unknown/unknown")?);
            entry.annotations.insert("vnd.docker.reference.type".to_owned(), "attestation-manifest".to_owned());
            entries.push(entry);
        }
        let index = Index::new(oci::Family::Oci, &entries)?;
        client.put_manifest(&Reference::parse(&format!("{repository}:20-dind"))?, OCI_INDEX, index.bytes())?;
        Ok((manifest.descriptor(), index))
    }

    /// The published base's shape: daemons in /usr/local/bin, an entrypoint script, a shell, and a real /usr/local/sbin.
    fn layer(&self, layout: &Layout) -> Result<oci::Layer, Failed> {
        let executable = Permissions::root(0o755);
        let mut layer = LayerWriter::new(layout, Timestamp::from_epoch(1_600_000_000)?)?;
        for folder in ["bin", "usr", "usr/local", "usr/local/bin", "usr/local/sbin"] {
            layer.directory(folder, executable)?;
        }
        layer.file("bin/sh", executable, &program(X86_64))?;
        layer.file("usr/local/bin/containerd", executable, &program(X86_64))?;
        layer.file("usr/local/bin/dockerd", executable, &program(self.dockerd))?;
        layer.file("usr/local/bin/dockerd-entrypoint.sh", executable, b"#!/bin/sh\n")?;
        Ok(layer.finish()?)
    }
}

impl Derived {
    /// The lines of stderr that warn.
    fn warnings(&self) -> Vec<String> {
        let errors = String::from_utf8_lossy(&self.output.stderr);
        errors.lines().filter(|line| line.starts_with("warning ")).map(str::to_owned).collect()
    }

    /// Expects an image, and one warning that says `expected`.
    fn warned(&self, expected: &str) -> Result<(), Failed> {
        done(&self.output)?;
        let warnings = self.warnings();
        ensure(
            warnings.len() == 1
                && warnings[0].contains("docker.io/library/docker:20-dind")
                && warnings[0].contains(expected),
            format!("expected one warning with `{expected}`, found {warnings:?}\n{}", said(&self.output)),
        )
    }

    /// The derived manifest and configuration.
    fn documents(&self) -> Result<(Value, Value), Failed> {
        let layout = Layout::open(&self.bench.path("out/dind"))?;
        let index = Index::parse(layout.bytes(&layout.index()?.manifests()[0])?)?;
        let manifest = Manifest::parse(layout.bytes(&index.manifests()[0])?)?;
        let config = layout.bytes(manifest.config())?;
        Ok((serde_json::from_slice(manifest.bytes())?, serde_json::from_slice(&config)?))
    }
}

/// An ELF header of 64 bits for `machine` without segments: enough for whoever asks what a file is made for.
fn program(machine: u8) -> Vec<u8> {
    let mut bytes = b"\x7fELF\x02\x01\x01".to_vec();
    bytes.resize(64, 0);
    for (offset, value) in [(16, 2), (18, machine), (20, 1), (52, 64), (54, 56)] {
        bytes[offset] = value;
    }
    bytes
}

fn edited(json: &[u8], edit: fn(&mut Value)) -> Result<Vec<u8>, Failed> {
    let mut value = serde_json::from_slice(json)?;
    edit(&mut value);
    Ok(serde_json::to_vec(&value)?)
}

fn unedited(definition: String) -> String {
    definition
}

fn plain() -> Result<(), Failed> {
    let derived = PLAIN.derive(unedited)?;
    done(&derived.output)?;
    ensure(derived.warnings().is_empty(), said(&derived.output))?;
    let record = derived.bench.record("out")?;
    ensure(record["images"][0]["base"].get("left_out").is_none(), format!("{}", record["images"][0]["base"]))
}

fn mixed() -> Result<(), Failed> {
    let base = Odd {
        manifest: |manifest| {
            manifest["layers"][0]["mediaType"] = json!("application/vnd.docker.image.rootfs.diff.tar.gzip");
        },
        ..PLAIN
    };
    base.derive(unedited)?
        .warned("media types of two families: OCI's: the index; Docker's: layer application/vnd.docker.")
}

fn history() -> Result<(), Failed> {
    let base = Odd { config: |config| config["history"] = json!([]), ..PLAIN };
    let derived = base.derive(unedited)?;
    derived.warned("expected 1 layers in its history, as it has diff ids, found 0")?;
    let (_, config) = derived.documents()?;
    ensure(config["history"].as_array().map(Vec::len) == Some(1), format!("{config}"))?;
    ensure(config["rootfs"]["diff_ids"].as_array().map(Vec::len) == Some(2), format!("{config}"))
}

fn variant() -> Result<(), Failed> {
    let derived = Odd { config: |config| config["variant"] = json!("v2"), ..PLAIN }.derive(unedited)?;
    derived.warned("linux/amd64: expected that platform in the configuration as in the index, found linux/amd64/v2")?;
    let (_, config) = derived.documents()?;
    ensure(config["variant"] == "v2", format!("the base's variant did not stay: {config}"))?;
    let other = Odd { config: |config| config["architecture"] = json!("arm64"), ..PLAIN }.derive(unedited)?;
    refused(&other.output, &["expected platform linux/amd64, found linux/arm64"])
}

fn attestations() -> Result<(), Failed> {
    let derived = Odd { attested: true, ..PLAIN }.derive(unedited)?;
    done(&derived.output)?;
    let errors = String::from_utf8_lossy(&derived.output.stderr);
    let lines: Vec<_> = errors.lines().filter(|line| line.contains("attestations left out")).collect();
    ensure(lines.len() == 1 && lines[0].ends_with(": 1"), format!("expected one line that counts 1\n{errors}"))?;
    let attestation = derived.index.manifests()[1].digest.to_string();
    let record = derived.bench.record("out")?;
    let left_out = &record["images"][0]["base"]["left_out"];
    ensure(*left_out == json!([attestation]), format!("expected {attestation}, found {left_out}"))?;
    let layout = Layout::open(&derived.bench.path("out/dind"))?;
    let index = Index::parse(layout.bytes(&layout.index()?.manifests()[0])?)?;
    ensure(index.manifests().len() == 1, format!("expected the image alone, found {:?}", index.manifests()))
}

fn identity() -> Result<(), Failed> {
    let base = Odd {
        config: |config| config["config"]["Labels"] = identity_of_base(),
        manifest: |manifest| manifest["annotations"] = identity_of_base(),
        ..PLAIN
    };
    let derived = base.derive(|definition| {
        definition + "labels: { org.opencontainers.image.title: dind, com.example.own: \"1\" }\n"
    })?;
    done(&derived.output)?;
    let (manifest, config) = derived.documents()?;
    let expected =
        json!({"com.example.kept": "to the letter", "org.opencontainers.image.title": "dind", "com.example.own": "1"});
    ensure(config["config"]["Labels"] == expected, format!("labels: {}", config["config"]["Labels"]))?;
    let expected = json!({
        "com.example.kept": "to the letter",
        "org.opencontainers.image.base.name": "docker.io/library/docker:20-dind",
        "org.opencontainers.image.base.digest": derived.base.digest.to_string(),
    });
    ensure(manifest["annotations"] == expected, format!("annotations: {}", manifest["annotations"]))
}

fn identity_of_base() -> Value {
    json!({
        "org.opencontainers.image.version": "20.10.23",
        "org.opencontainers.image.title": "docker",
        "org.opencontainers.image.base.name": "docker.io/library/alpine:3.17",
        "org.label-schema.vcs-ref": "0123456",
        "com.example.kept": "to the letter",
    })
}

/// The control is [`plain`], in which the same daemon is of the right machine.
fn machine() -> Result<(), Failed> {
    let derived = Odd { dockerd: AARCH64, ..PLAIN }.derive(unedited)?;
    refused(
        &derived.output,
        &["derive dind: check program /usr/local/bin/dockerd: ", "machine: expected x86_64, found aarch64"],
    )
}

//! What a promotion believes: the record, where it comes from, and whether it and the index speak of the same image. Each cheat is refused,
//! by the dry run too, and the same command with what was honest goes through.

use std::fs;
use std::process::Output;

use libtest_mimic::{Failed, Trial};
use oci::{Client, Descriptor, Digest, Family, Index, Layout, Manifest, Options, Platform, Reference, Silent};
use serde_json::{Value, json};

use crate::promote::{Counter, denied, judge};
use crate::shop::{Shop, done};
use crate::support::{command, ensure, lacks, said, trial_if};

const ARM64: &str = "linux/arm64/v8";
/// As `evidence` has it.
const RECORD_TYPE: &str = "application/vnd.dind-init.record.v1+json";

pub(crate) fn trials() -> Vec<Trial> {
    let registry = lacks(&["docker-registry"]);
    vec![
        trial_if("proof::an_index_is_what_its_record_says", registry.clone(), index),
        trial_if("proof::a_platform_of_the_definition_is_missed", registry.clone(), missing_platform),
        trial_if("proof::the_dry_run_refuses_what_the_apply_would", registry.clone(), dry_run),
        trial_if("proof::no_mirror_supplies_it", registry.clone(), mirror),
        trial_if("proof::records_that_contradict_prove_nothing", registry.clone(), contradictions),
        trial_if("proof::a_record_in_staging_that_is_none_is_named", registry, staged),
    ]
}

/// Refused with `--confirm` and without; nothing was promoted.
fn refused(counter: &Counter, expected: &[&str]) -> Result<(), Failed> {
    denied(&counter.promote(&[])?, 2, expected)?;
    denied(&counter.promote(&["--confirm"])?, 2, expected)?;
    ensure(counter.names("20-1").is_none() && counter.names("20-dind").is_none(), "something was promoted")
}

/// The record, said of another index.
fn of(counter: &Counter, digest: Digest) -> Result<Value, Failed> {
    Ok(serde_json::from_str(&counter.record.to_string().replace(&counter.digest.to_string(), &digest.to_string()))?)
}

fn index() -> Result<(), Failed> {
    let counter = Counter::open()?;
    let staging = counter.shop.repository("staging")?;
    let client = Client::new(Options::default())?;
    let passed = counter.shop.published("staging", "dind")?.manifests()[0].clone();
    // A manifest that nobody judged.
    counter.another()?;
    let unjudged = counter.shop.published("staging", "dind")?.manifests()[0].clone();
    let extra = unjudged.clone().with_platform(Platform::parse(ARM64)?);
    let unnamed = Descriptor::new(&unjudged.media_type, unjudged.digest, unjudged.size);
    let none: &[Descriptor] = &[];
    for (what, entries, expected) in [
        ("one more platform", &[passed.clone(), extra][..], ["found linux/arm64/v8", "sha256:"]),
        ("another manifest", std::slice::from_ref(&unjudged), ["found linux/amd64", "sha256:"]),
        ("one more manifest of the platform", &[passed.clone(), unjudged.clone()], ["found linux/amd64", "sha256:"]),
        ("one of no platform", &[passed.clone(), unnamed], ["found no platform", "sha256:"]),
        ("nothing", none, ["expected linux/amd64", "found nothing"]),
    ] {
        let index = Index::new(Family::Oci, entries)?;
        let to = Reference::Pinned(staging.pinned(index.digest()));
        client.put_manifest(&to, index.media_type(), index.bytes())?;
        counter.declare(&index.digest(), "{ 20-dind: floating, 20-1: immutable }")?;
        counter.prove(&of(&counter, index.digest())?)?;
        refused(&counter, &["compare index", expected[0], expected[1]])
            .map_err(|error| -> Failed { format!("{what}: {}", error.message().unwrap_or_default()).into() })?;
    }
    counter.declare(&counter.digest, "{ 20-dind: floating, 20-1: immutable }")?;
    counter.prove(&counter.record)?;
    done(&counter.promote(&["--confirm"])?)
}

fn missing_platform() -> Result<(), Failed> {
    let counter = Counter::open()?;
    let mut record = counter.record.clone();
    record["images"][0]["listed"] = json!(["linux/amd64", ARM64]);
    counter.prove(&record)?;
    refused(&counter, &["each platform of its definition", ARM64, "hint:", "--allow-missing-platforms"])?;
    record["images"][0]["listed"] = json!([]);
    counter.prove(&record)?;
    refused(&counter, &["the platforms of its definition", "found none"])?;
    record["images"][0]["listed"] = json!(["linux/amd64", ARM64]);
    counter.prove(&record)?;
    done(&counter.promote(&["--confirm", "--allow-missing-platforms"])?)
}

fn dry_run() -> Result<(), Failed> {
    let counter = Counter::open()?;
    let text = fs::read_to_string(counter.shop.path("promotion.yaml"))?;
    let child = counter.shop.published("staging", "dind")?.manifests()[0].digest;
    // No such index.
    let lost = Digest::of(b"lost");
    counter.declare(&lost, "{ 20-1: immutable }")?;
    counter.prove(&of(&counter, lost)?)?;
    refused(&counter, &["find index", &lost.to_string(), "not found", "hint:"])?;
    // A manifest in its place.
    counter.declare(&child, "{ 20-1: immutable }")?;
    counter.prove(&of(&counter, child)?)?;
    refused(&counter, &["expected an index, found an image manifest"])?;
    // No such repository.
    counter.prove(&counter.record)?;
    counter.write(&text.replace("/staging", "/nowhere"))?;
    refused(&counter, &["find index", "nowhere", "not found", "hint:"])?;
    // A manifest that was collected.
    counter.write(&text)?;
    let revisions = "docker/registry/v2/repositories/staging/_manifests/revisions/sha256";
    let link = counter.shop.registry.storage().join(revisions).join(child.hex()).join("link");
    let kept = fs::read(&link)?;
    fs::remove_file(&link)?;
    refused(&counter, &["find manifest", &child.to_string(), "not found", "hint:"])?;
    fs::write(&link, kept)?;
    done(&counter.promote(&["--confirm"])?)
}

/// A promotion whose record is nowhere but beside the image.
fn unrecorded(counter: &Counter, more: &[&str]) -> Result<Output, Failed> {
    let mut command = command(["promote", "--confirm", "--file"]);
    Ok(command.arg(counter.shop.path("promotion.yaml")).args(more).output()?)
}

/// The mirror has the image and a record of it; the registry has no record.
fn mirror() -> Result<(), Failed> {
    let counter = Counter::open()?;
    let far = Shop::open()?;
    fs::write(counter.shop.path("out/digests.json"), counter.record.to_string())?;
    let to = far.repository("staging")?.to_string();
    done(&command(["publish", &to, "--out"]).arg(counter.shop.path("out")).output()?)?;
    let mirror = format!("{}=http://{}", counter.shop.wire.host(), far.wire.host());
    denied(&unrecorded(&counter, &["--mirror", &mirror])?, 2, &["find the record of", "found none", "hint:"])?;
    ensure(counter.names("20-1").is_none(), "a mirror's record proved it")?;
    // The control: the record proves it where it lies in the registry itself.
    let text = fs::read_to_string(counter.shop.path("promotion.yaml"))?;
    counter.write(&text.replace(&counter.shop.repository("staging")?.to_string(), &to))?;
    done(&unrecorded(&counter, &[])?)
}

fn contradictions() -> Result<(), Failed> {
    let counter = Counter::open()?;
    let honest = counter.record.to_string();
    let first = |record: &Value| record["images"][0].clone();
    let failed: Value = serde_json::from_str(&honest.replace("\"outcome\":\"passed\"", "\"outcome\":\"failed\""))?;
    for images in [[first(&counter.record), first(&failed)], [first(&failed), first(&counter.record)]] {
        let mut record = counter.record.clone();
        record["images"] = json!(images);
        counter.prove(&record)?;
        let code = if images[0] == first(&failed) { 1 } else { 2 };
        let output = counter.promote(&["--confirm"])?;
        ensure(matches!(output.status.code(), Some(1 | 2)), format!("{code}: {}", said(&output)))?;
        ensure(String::from_utf8_lossy(&output.stderr).contains("records differ"), said(&output))?;
        ensure(counter.names("20-1").is_none(), "something was promoted")?;
    }
    for (from, to, expected) in [
        ("\"image\":\"dind\"", "\"image\":\"other\"", "found a verdict on \"other\""),
        ("\"kind\":\"dockerd\"", "\"kind\":\"containerd\"", "found a verdict on an image that runs containerd"),
    ] {
        let record: Value = serde_json::from_str(&honest.replace(from, to))?;
        ensure(record != counter.record, format!("{from} is not in the record"))?;
        counter.prove(&record)?;
        refused(&counter, &["expected that linux/amd64 passed", expected])?;
    }
    // Two readers of a doubled key may each take another one.
    let doubled = honest.replacen("\"outcome\":\"passed\"", "\"outcome\":\"failed\",\"outcome\":\"passed\"", 1);
    fs::write(counter.shop.path("record.json"), doubled)?;
    crate::shop::refused(&counter.promote(&["--confirm"])?, &["record.json", "duplicate field"])?;
    ensure(counter.names("20-1").is_none(), "something was promoted")?;
    // Two records of one outcome agree.
    let mut twice = counter.record.clone();
    twice["images"] = json!([first(&twice), first(&twice)]);
    judge(&mut twice);
    counter.prove(&twice)?;
    done(&counter.promote(&["--confirm"])?)
}

/// What lies under the record's tag is cut off: the error names the tag.
fn staged() -> Result<(), Failed> {
    let counter = Counter::open()?;
    let staging = counter.shop.repository("staging")?;
    let client = Client::new(Options::default())?;
    let layout = Layout::open_or_create(&counter.shop.path("evidence"))?;
    let tag = format!("record-{:.12}", counter.digest.hex());
    let put = |text: &str| -> Result<(), Failed> {
        let blob = layout.put(RECORD_TYPE, text.as_bytes())?;
        client.push_blob(&staging, &blob, &layout, &Silent)?;
        let manifest = Manifest::new(Family::Oci, &blob, &[]);
        client.put_manifest(&Reference::Tagged(staging.tagged(&tag)?), manifest.media_type(), manifest.bytes())?;
        Ok(())
    };
    let text = counter.record.to_string();
    put(&text[..text.len() / 2])?;
    let output = unrecorded(&counter, &[])?;
    denied(&output, 2, &["read ", &tag, "EOF"])?;
    ensure(!String::from_utf8_lossy(&output.stderr).contains("carried-"), said(&output))?;
    put(&text)?;
    done(&unrecorded(&counter, &[])?)
}

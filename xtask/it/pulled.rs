//! `judge`: what cannot be judged as it was published is refused by name, and the record stays as it was; what was found of it reaches
//! promotion. That it passes what passed is shown by the workflows' steps.

use std::fs;

use libtest_mimic::{Failed, Trial};
use oci::{Client, Digest, Family, Index, Options, Platform};
use serde_json::{Value, json};
use xtask::record::{ImageRecord, Record};
use xtask::stages::evidence;

use crate::shop::{Shop, done, refused};
use crate::support::{command, ensure, lacks, repository, said, trial_if};
use crate::workbench::{AMD64, NOBODY};

pub(crate) fn trials() -> Vec<Trial> {
    let missing = lacks(&["docker-registry", "tini-static"]);
    vec![
        trial_if("pulled::what_is_not_as_recorded_is_refused", missing.clone(), refusals),
        trial_if("pulled::what_was_found_refuses_a_promotion", missing.clone(), told),
        trial_if("pulled::the_table_takes_its_records_from_staging", missing.clone(), listed),
        trial_if("pulled::the_verdicts_of_other_machines_stay", missing, others),
    ]
}

fn refusals() -> Result<(), Failed> {
    let shop = Shop::open()?;
    shop.base("base", &[AMD64], Family::Oci)?;
    shop.definition("dind", "base", &[AMD64], "")?;
    done(&shop.push("staging", &[])?)?;
    let record = shop.record()?;
    let other = Digest::of(b"another").to_string();
    let path = shop.path("record.json");
    let refuses = |record: &Value, expected: &[&str]| -> Result<(), Failed> {
        let text = record.to_string();
        fs::write(&path, &text)?;
        let output = command(["judge"]).arg(&path).env("XTASK_IMAGES", shop.path("images")).output()?;
        refused(&output, expected)?;
        ensure(fs::read_to_string(&path)? == text, "the record is another one")
    };
    let changed = |at: &str, value: Value| -> Result<Value, Failed> {
        let mut record = record.clone();
        *record.pointer_mut(at).ok_or(format!("no {at}"))? = value;
        Ok(record)
    };
    let manifest = record["images"][0]["platforms"][AMD64]["digest"].as_str().ok_or("no digest")?;
    let nowhere = changed("/images/0/published/repository", json!(format!("{NOBODY}/dind")))?;
    refuses(&nowhere, &["judge dind: pull 127.0.0.1:9/dind@sha256:"])?;
    let nowhere = changed("/images/0/base/name", json!(format!("{NOBODY}/base:1")))?;
    refuses(&nowhere, &["judge dind: pull 127.0.0.1:9/base@sha256:"])?;
    refuses(&changed("/images/0/published", Value::Null)?, &["judge dind", "not published"])?;
    refuses(&changed("/images/0/name", json!("nobody"))?, &["nobody", "the images are dind"])?;
    refuses(&changed("/images/0/base/source", json!("standin"))?, &["judge dind", "expected a base from a registry"])?;
    refuses(&changed("/images/0/digest", json!(other))?, &[&other, "not found"])?;
    let place = "/images/0/platforms/linux~1amd64";
    refuses(&changed(&format!("{place}/digest"), json!(other))?, &[AMD64, &other, "found", manifest])?;
    refuses(&changed(&format!("{place}/base"), json!(other))?, &[&other, "not found"])?;
    refuses(
        &changed(&format!("{place}/base"), json!(shop.published("base", "1")?.digest().to_string()))?,
        &["found an index"],
    )?;
    let platform = record.pointer(place).ok_or("no platform")?.clone();
    let foreign = changed("/images/0/platforms", json!({ "linux/arm64/v8": platform }))?;
    refuses(&foreign, &["judge dind", AMD64, "found other platforms"])?;
    // A layer that is damaged where it was published.
    let manifest = shop.registry.blob(&Digest::parse(manifest)?);
    let layers: Value = serde_json::from_slice(&fs::read(manifest)?)?;
    let layer = layers["layers"][0]["digest"].as_str().ok_or("no layer")?;
    fs::write(shop.registry.blob(&Digest::parse(layer)?), "damaged")?;
    refuses(&record, &[layer])
}

/// An image in staging, the record of a suite that passed it, and a promotion file: here no suite has seen it.
fn passed(platforms: &[&str]) -> Result<(Shop, Index, ImageRecord), Failed> {
    let shop = Shop::open()?;
    shop.base("base", platforms, Family::Oci)?;
    shop.definition("dind", "base", platforms, "")?;
    done(&shop.push("staging", &[])?)?;
    let mut record = shop.record()?;
    for platform in record["images"][0]["platforms"].as_object_mut().ok_or("no platforms")?.values_mut() {
        let row = json!({
            "number": 1, "scenario": "s", "area": "a", "case": "c", "proves": "p", "outcome": "passed", "reason": "", "legs": []
        });
        platform["verdict"] = json!({
            "image": "dind", "digest": platform["digest"], "kind": "dockerd", "selection": "full", "outcome": "passed",
            "rows": [row], "versions": {}, "place": { "engine": "trial", "kernel": "0", "cgroup": "v1" }
        });
        platform.as_object_mut().ok_or("no platform")?.remove("unjudged");
    }
    fs::write(shop.path("record.json"), record.to_string())?;
    let image = Record::read(&shop.path("record.json"))?.images.remove(0);
    let (staging, users) = (shop.repository("staging")?, shop.repository("users")?);
    let tags = "tags: { 20-1: immutable }";
    let text =
        format!("source: {staging}\ntarget: {users}\nimages:\n  dind:\n    digest: {}\n    {tags}\n", image.digest);
    fs::write(shop.path("images/promotion.yaml"), text)?;
    let index = shop.published("staging", "dind")?;
    let client = Client::new(Options::default())?;
    evidence::put(&image, &index.descriptor(), &staging, shop.folder.path(), &client)?;
    Ok((shop, index, image))
}

/// No daemon is in the image, so that the suite cannot pass it, whatever the record says.
fn told() -> Result<(), Failed> {
    let (shop, ..) = passed(&[AMD64])?;
    let staging = shop.repository("staging")?.to_string();
    let promote = || command(["promote", "--file"]).arg(shop.path("images/promotion.yaml")).output();
    done(&promote()?)?;
    let judge = |to: &str| {
        let mut command = command(["judge", "--push", to, "--images"]);
        command.arg(shop.path("images")).arg(shop.path("record.json")).output()
    };
    let elsewhere = shop.repository("elsewhere")?.to_string();
    refused(&judge(&elsewhere)?, &["judge dind", &elsewhere, "found one in", &format!("hint: --push {staging}")])?;
    done(&promote()?)?;
    let judged = judge(&staging)?;
    let outcome = String::from_utf8_lossy(&judged.stdout);
    ensure(outcome.starts_with("dind@sha256:") && !outcome.contains("passed"), said(&judged))?;
    let output = promote()?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure(output.status.code() == judged.status.code(), said(&output))?;
    ensure(errors.contains("expected that linux/amd64 passed, found the verdict"), said(&output))
}

/// The image was promoted, and no file has its record.
fn listed() -> Result<(), Failed> {
    let (shop, index, _) = passed(&[AMD64])?;
    let page = shop.path("page.md");
    fs::copy(repository().join("README.md"), &page)?;
    let digests = |more: &[&str]| {
        let mut command = command(["digests", "--images"]);
        command.arg(shop.path("images")).arg("--page").arg(&page).args(more).output()
    };
    refused(&digests(&["--check"])?, &["find the record of dind", "hint: name the one that has it by --record"])?;
    let record = shop.path("record.json");
    let name = record.display().to_string();
    let failed = fs::read_to_string(&record)?.replace("\"passed\"", "\"failed\"");
    fs::write(shop.path("failed.json"), failed)?;
    let forged = shop.path("failed.json").display().to_string();
    refused(&digests(&["--record", &forged])?, &["list dind", "found the verdict failed"])?;
    ensure(!shop.path("images/digests.json").exists(), "a failure was listed")?;
    refused(&digests(&["--check", "--record", &name])?, &[&format!("hint: cargo xtask digests --record {name}")])?;
    done(&digests(&[])?)?;
    let table = fs::read_to_string(&page)?;
    ensure(table.contains(&format!("users:20-1` | immutable | - | {}", shop.repository("base")?)), table.clone())?;
    ensure(table.contains(&index.digest().to_string()), table)?;
    done(&digests(&["--check"])?)
}

/// The machines have the record of the merge, and each judges its own platform.
fn others() -> Result<(), Failed> {
    let (shop, index, merged) = passed(&[AMD64, "linux/arm64/v8"])?;
    let staging = shop.repository("staging")?;
    let client = Client::new(Options::default())?;
    let place = shop.folder.path();
    let [amd64, arm64] = [Platform::parse(AMD64)?, Platform::parse("linux/arm64/v8")?];
    let failed = |platform: &Platform| -> Result<ImageRecord, Failed> {
        let mut record = merged.clone();
        let verdict = record.platforms.get_mut(platform).and_then(|platform| platform.verdict.as_mut());
        verdict.ok_or("no verdict")?.outcome = suite::Outcome::Failed;
        Ok(record)
    };
    let replace = |image: &ImageRecord, platform: &Platform| {
        evidence::replace_verdict(image, (platform, &index.descriptor()), &staging, place, &client)
    };
    replace(&failed(&arm64)?, &arm64)?;
    replace(&merged, &amd64)?;
    let found = evidence::get(&index.digest(), &staging, place, &client)?.ok_or("no record")?;
    ensure(found == failed(&arm64)?, format!("expected that the other machine's verdict stays, found {found:#?}"))?;
    let mut other = merged.clone();
    other.platforms.get_mut(&amd64).ok_or("no platform")?.digest = Digest::of(b"another");
    let error = replace(&other, &amd64).err().ok_or("the verdict on another manifest was taken")?;
    ensure(error.to_string().contains("in the record, found another"), format!("{error:#}"))
}

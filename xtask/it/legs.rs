//! Many machines, each with a platform of its own: the matrix that says what runs where, the legs run to its letter, and what becomes
//! of legs that are missing, moved or merged twice. What a merge costs, and which legs do not fit, is in `publish`.

use std::fs;
use std::path::PathBuf;

use libtest_mimic::{Failed, Trial};
use oci::{Client, Digest, Family, Options, Reference};
use serde_json::Value;

use crate::shop::{Shop, done, refused};
use crate::support::{command, ensure, lacks, trial, trial_if};

const BOTH: [&str; 2] = ["linux/amd64", "linux/arm64/v8"];

pub(crate) fn trials() -> Vec<Trial> {
    let registry = lacks(&["docker-registry"]);
    vec![
        trial("legs::the_matrix_has_one_job_for_each_platform", matrix),
        trial("legs::a_matrix_that_cannot_be_is_refused", odd_matrix),
        trial_if("legs::the_matrix_run_to_the_letter_is_one_image", registry.clone(), by_the_matrix),
        trial_if("legs::a_merge_that_cannot_be_recorded_publishes_nothing", registry.clone(), no_place),
        trial_if("legs::a_merge_again_changes_nothing_and_a_lost_leg_is_named", registry, again),
    ]
}

fn jobs(arguments: &[&str]) -> Result<Vec<Value>, Failed> {
    let output = command(["matrix"]).args(arguments).output()?;
    done(&output)?;
    let text = String::from_utf8(output.stdout)?;
    // GITHUB_OUTPUT takes `name=value` lines: one line, or it is cut.
    ensure(text.ends_with('\n') && text.lines().count() == 1, format!("expected one line, found {text:?}"))?;
    let matrix: Value = serde_json::from_str(&text)?;
    ensure(matrix.as_object().is_some_and(|keys| keys.len() == 1), format!("expected `include` alone: {matrix}"))?;
    Ok(matrix["include"].as_array().ok_or("no include")?.clone())
}

fn matrix() -> Result<(), Failed> {
    let folder = crate::support::folder()?;
    let definition = |name: &str, platforms: &str| {
        let text = format!(
            "name: {name}\ndescription: a trial's\nbase: docker:20-dind\nstandin: {{ suite: bookworm, flavour: post }}\n\
             platforms: [{platforms}]\ntags: [{name}]\nruns: dockerd\nguards: []\nentrypoint: [/usr/local/sbin/dind-init, --, dockerd]\n"
        );
        fs::write(folder.path().join(format!("{name}.yaml")), text)
    };
    definition("both", "linux/amd64, linux/arm64/v8")?;
    definition("one", "linux/amd64")?;
    let images = folder.path().display().to_string();
    let job = |platform: &str, runner: &str, images: &str, leg: &str| serde_json::json!({ "platform": platform, "runner": runner, "images": images, "leg": leg });
    let arm64 = job("linux/arm64/v8", "ubuntu-24.04-arm", "both", "linux-arm64-v8");
    let found = jobs(&["--images", &images])?;
    let expected = [job("linux/amd64", "ubuntu-24.04", "both one", "linux-amd64"), arm64.clone()];
    ensure(found == expected, format!("expected {expected:?}, found {found:?}"))?;
    let found = jobs(&["--images", &images, "both"])?;
    let expected = [job("linux/amd64", "ubuntu-24.04", "both", "linux-amd64"), arm64];
    ensure(found == expected, format!("expected {expected:?}, found {found:?}"))?;
    // A program for another system or processor has no runner here.
    for platform in ["windows/amd64", "linux/s390x"] {
        definition("odd", platform)?;
        let output = command(["matrix", "--images", &images]).output()?;
        refused(&output, &["find a runner for", platform, "expected one of linux/amd64, linux/arm64"])?;
    }
    Ok(())
}

fn odd_matrix() -> Result<(), Failed> {
    refused(
        &command(["matrix", "nobody"]).output()?,
        &["find image `nobody`", "hint: the images are containerd, dind"],
    )?;
    refused(&command(["matrix", "--images", "no/such/folder"]).output()?, &["no/such/folder"])
}

/// Runs each job of the matrix as a workflow would, on a record of its own, and returns the records.
fn run_jobs(shop: &Shop, to: &str) -> Result<Vec<PathBuf>, Failed> {
    let mut records = Vec::new();
    for job in jobs(&["--images", &shop.path("images").display().to_string()])? {
        let of = |key: &str| job[key].as_str().map(str::to_owned).ok_or(format!("no {key} in {job}"));
        let out = shop.path(&of("leg")?);
        let mut build = command(["build-images", "--base", "registry", "--suite", "none", "--allow-unjudged"]);
        build.args(["--push", to, "--push-by-digest", "--platform", &of("platform")?]).args(of("images")?.split(' '));
        done(&build.arg("--images").arg(shop.path("images")).arg("--out").arg(&out).output()?)?;
        records.push(out.join("digests.json"));
    }
    Ok(records)
}

fn merge(records: &[PathBuf], out: PathBuf) -> Result<std::process::Output, Failed> {
    Ok(command(["merge", "--allow-unjudged"]).args(records).arg("--out").arg(out).output()?)
}

fn two_images() -> Result<Shop, Failed> {
    let shop = Shop::open()?;
    shop.base("dind", &BOTH, Family::Oci)?;
    shop.definition("both", "dind", &BOTH, "")?;
    shop.definition("one", "dind", &BOTH[..1], "env: { ONE: yes }")?;
    Ok(shop)
}

fn by_the_matrix() -> Result<(), Failed> {
    let shop = two_images()?;
    let to = shop.repository("dind")?.to_string();
    let records = run_jobs(&shop, &to)?;
    ensure(records.len() == 2, format!("{records:?}"))?;
    done(&merge(&records, shop.path("merged"))?)?;
    let record: Value = serde_json::from_slice(&fs::read(shop.path("merged/digests.json"))?)?;
    for (at, (tag, platforms)) in [("both", 2), ("one", 1)].into_iter().enumerate() {
        let index = shop.published("dind", tag)?;
        ensure(index.digest().to_string() == record["images"][at]["digest"], format!("{tag}: {record:#}"))?;
        ensure(record["images"][at]["published"]["repository"] == to, format!("{tag}: {record:#}"))?;
        ensure(shop.pull("dind", &index)?.len() == platforms, format!("{tag}: {index:?}"))?;
    }
    Ok(())
}

fn no_place() -> Result<(), Failed> {
    let shop = two_images()?;
    let records = run_jobs(&shop, &shop.repository("dind")?.to_string())?;
    let file = shop.path("file");
    fs::write(&file, "mine")?;
    refused(&merge(&records, file.clone())?, &["make", &file.display().to_string()])?;
    ensure(fs::read(&file)? == b"mine", "the file is another one")?;
    ensure(shop.published("dind", "both").is_err() && shop.published("dind", "one").is_err(), "it was published")
}

fn again() -> Result<(), Failed> {
    let mut shop = two_images()?;
    let to = shop.repository("dind")?;
    let records = run_jobs(&shop, &to.to_string())?;
    done(&merge(&records, shop.path("merged"))?)?;
    let merged = fs::read(shop.path("merged/digests.json"))?;
    shop.requests()?;
    done(&merge(&records, shop.path("merged"))?)?;
    let requests = shop.requests()?;
    ensure(requests.iter().all(|request| request.starts_with("HEAD ")), format!("{requests:#?}"))?;
    ensure(fs::read(shop.path("merged/digests.json"))? == merged, "the record is another one")?;

    // A record that names an index in a leg's place.
    let (leg, index) = (fs::read_to_string(&records[1])?, shop.published("dind", "one")?.digest().to_string());
    let record: Value = serde_json::from_str(&leg)?;
    let manifest = record["images"][0]["platforms"][BOTH[1]]["digest"].as_str().ok_or("no digest")?;
    let odd = shop.path("odd.json");
    fs::write(&odd, leg.replace(manifest, &index))?;
    let output = merge(&[records[0].clone(), odd], shop.path("merged"))?;
    refused(&output, &["merge both", BOTH[1], "expected an image manifest", &index, "found an index"])?;

    // A leg's manifest is deleted, as by a clean-up that is too eager: the merge says which.
    let link = to.path().to_owned() + "/_manifests/revisions/sha256/" + &Digest::parse(manifest)?.hex();
    fs::remove_dir_all(shop.registry.storage().join("docker/registry/v2/repositories").join(link))?;
    let pinned = Reference::Pinned(to.pinned(Digest::parse(manifest)?));
    ensure(Client::new(Options::default())?.head(&pinned)?.is_none(), "the registry still has it")?;
    let output = merge(&records, shop.path("merged"))?;
    refused(&output, &["merge both", BOTH[1], manifest, "found nothing by that digest"])?;
    ensure(fs::read(shop.path("merged/digests.json"))? == merged, "the record is another one")
}

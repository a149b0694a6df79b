//! Many machines, each with a platform of its own: the matrix that says what runs where, the legs run to its letter, and what becomes
//! of legs that are missing, moved or merged twice. What a merge costs, and which legs do not fit, is in `publish`.

use std::fs;
use std::path::PathBuf;

use libtest_mimic::{Failed, Trial};
use oci::{Client, Digest, Family, Index, Options, Reference};
use serde_json::Value;
use xtask::bench::Registry;

use crate::shop::{Shop, done, refused};
use crate::support::{command, ensure, lacks, run, trial, trial_if};

const BOTH: [&str; 2] = ["linux/amd64", "linux/arm64/v8"];

pub(crate) fn trials() -> Vec<Trial> {
    let registry = lacks(&["docker-registry"]);
    vec![
        trial("legs::the_matrix_has_one_job_for_each_platform", matrix),
        trial("legs::a_matrix_that_cannot_be_is_refused", odd_matrix),
        trial_if("legs::the_matrix_run_to_the_letter_is_one_image", registry.clone(), by_the_matrix),
        trial_if("legs::a_merge_that_cannot_be_recorded_publishes_nothing", registry.clone(), no_place),
        trial_if("legs::a_merge_again_changes_nothing_and_a_lost_leg_is_named", registry.clone(), again),
        trial_if("legs::a_leg_that_is_not_what_its_record_says_is_refused", registry.clone(), lies),
        trial_if("legs::a_leg_that_is_missing_leaves_the_tag_where_it_was", registry.clone(), lacking),
        trial_if("legs::f58_what_is_staged_outlives_a_collection", registry.clone(), collected),
        trial_if("legs::the_legs_of_a_mixed_base_are_merged", registry.clone(), mixed),
        trial_if("legs::the_legs_of_a_stand_in_are_merged_by_its_packages", registry, standins),
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
    let looks = |request: &String| request.starts_with("HEAD ") || request.starts_with("GET ");
    ensure(requests.iter().all(looks), format!("{requests:#?}"))?;
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
    // A mirror still has it, which is no help: the index needs it in the registry itself.
    let kept = crate::support::folder()?;
    run(std::process::Command::new("cp").arg("-a").arg(shop.registry.storage()).arg(kept.path().join("registry")))?;
    let mirror = Registry::start(kept.path()).map_err(|error| format!("{error:#}"))?;
    fs::remove_dir_all(shop.registry.storage().join("docker/registry/v2/repositories").join(link))?;
    let pinned = Reference::Pinned(to.pinned(Digest::parse(manifest)?));
    ensure(Client::new(Options::default())?.head(&pinned)?.is_none(), "the registry still has it")?;
    let output = merge(&records, shop.path("merged"))?;
    refused(&output, &["merge both", BOTH[1], manifest, "found nothing by that digest"])?;
    let mirrored = format!("{}=http://{}", shop.wire.host(), mirror.host());
    let mut merge = command(["merge", "--allow-unjudged", "--mirror", &mirrored]);
    let output = merge.args(&records).arg("--out").arg(shop.path("merged")).output()?;
    refused(&output, &["merge both", BOTH[1], manifest, "found nothing by that digest"])?;
    ensure(fs::read(shop.path("merged/digests.json"))? == merged, "the record is another one")
}

/// The records of the legs of one image, on a base of these types.
fn one_image(shop: &Shop) -> Result<Vec<PathBuf>, Failed> {
    shop.definition("ours", "dind", &BOTH, "floating: true")?;
    run_jobs(shop, &shop.repository("dind")?.to_string())
}

fn read(path: &std::path::Path) -> Result<Value, Failed> {
    Ok(serde_json::from_slice(&fs::read(path)?)?)
}

/// Each record is changed in one place, and is of one leg, so that the other leg cannot be what refuses it.
fn lies() -> Result<(), Failed> {
    let shop = Shop::open()?;
    shop.base("dind", &BOTH, Family::Oci)?;
    let records = one_image(&shop)?;
    let leg = read(&records[1])?;
    let truth = leg["images"][0]["platforms"][BOTH[1]].clone();
    let nothing = Digest::of(b"nothing").to_string();
    let (odd, out) = (shop.path("odd.json"), shop.path("merged"));
    let merged = |record: &Value| -> Result<_, Failed> {
        fs::write(&odd, record.to_string())?;
        Ok(command(["merge", "--allow-unjudged", "--allow-missing-platforms"])
            .arg(&odd)
            .arg("--out")
            .arg(&out)
            .output()?)
    };
    for (key, found) in [("config", &truth["config"]), ("base", &truth["base"])] {
        let mut record = leg.clone();
        record["images"][0]["platforms"][BOTH[1]][key] = nothing.clone().into();
        let found = found.as_str().ok_or("no digest")?;
        let expected = format!("expected {nothing}, found {found}");
        refused(&merged(&record)?, &["merge ours", BOTH[1], key, &expected])?;
    }
    let mut record = leg.clone();
    record["images"][0]["format"] = "docker".into();
    refused(&merged(&record)?, &["merge ours", BOTH[1], "media types", "expected Docker, found Oci"])?;
    for other in ["linux/amd64", "linux/arm/v7", "windows/arm64"] {
        let mut record = leg.clone();
        record["images"][0]["platforms"] = serde_json::json!({ other: truth });
        refused(&merged(&record)?, &["merge ours", &format!("expected platform {other}, found linux/arm64/v8")])?;
    }
    let mut record = leg.clone();
    record["images"][0]["tags"] = serde_json::json!([]);
    refused(&merged(&record)?, &["publish ours: expected a tag in its record, found none"])?;
    let mut record = leg.clone();
    let mut twin = leg["images"][0].clone();
    twin["name"] = "twin".into();
    record["images"].as_array_mut().ok_or("no images")?.push(twin);
    refused(&merged(&record)?, &["publish ours and twin: expected one image of the tag ours, found both"])?;
    ensure(shop.published("dind", "ours").is_err() && !out.exists(), "something was merged")?;
    // The control: the record as it was, and the platform in its other spelling.
    done(&merged(&leg)?)?;
    let mut record = leg.clone();
    record["images"][0]["platforms"] = serde_json::json!({ "linux/arm64": truth });
    done(&merged(&record)?)
}

fn lacking() -> Result<(), Failed> {
    let shop = Shop::open()?;
    shop.base("dind", &BOTH, Family::Oci)?;
    let records = one_image(&shop)?;
    done(&merge(&records, shop.path("merged"))?)?;
    let whole = shop.published("dind", "ours")?;
    for (there, lacks) in [(0, 1), (1, 0)] {
        let output = merge(&records[there..=there], shop.path("merged"))?;
        let expected = format!("found none for {}", BOTH[lacks]);
        refused(&output, &["merge ours: expected a leg for each platform", &expected, "--allow-missing-platforms"])?;
    }
    ensure(shop.published("dind", "ours")?.digest() == whole.digest(), "the tag was moved")?;
    // Legs of definitions that list other platforms are not of one image.
    let mut other = read(&records[1])?;
    other["images"][0]["listed"] = serde_json::json!([BOTH[1]]);
    fs::write(shop.path("odd.json"), other.to_string())?;
    let output = merge(&[records[0].clone(), shop.path("odd.json")], shop.path("merged"))?;
    refused(&output, &["compare legs of ours", "platforms of its definition: expected linux/amd64, linux/arm64/v8"])?;
    let mut allowed = command(["merge", "--allow-unjudged", "--allow-missing-platforms"]);
    done(&allowed.arg(&records[0]).arg("--out").arg(shop.path("merged")).output()?)?;
    ensure(shop.published("dind", "ours")?.manifests().len() == 1, "one platform")
}

/// The floating tag moves on, and the registry drops what no tag names: what was staged before may be promoted still.
fn collected() -> Result<(), Failed> {
    let shop = Shop::open()?;
    shop.base("dind", &BOTH, Family::Oci)?;
    done(&merge(&one_image(&shop)?, shop.path("merged"))?)?;
    let staged = shop.published("dind", "ours")?;
    shop.definition("ours", "dind", &BOTH, "floating: true\nenv: { NEWER: yes }")?;
    let to = shop.repository("dind")?;
    done(&merge(&run_jobs(&shop, &to.to_string())?, shop.path("merged"))?)?;
    ensure(shop.published("dind", "ours")?.digest() != staged.digest(), "the tag has not moved")?;
    let client = Client::new(Options::default())?;
    let by_digest = |index: &Index| Reference::Pinned(to.pinned(index.digest()));
    let untagged = Index::annotated(Family::Oci, staged.manifests(), &[("tagged", "no")])?;
    client.put_manifest(&by_digest(&untagged), untagged.media_type(), untagged.bytes())?;
    let config = shop.path("registry.yml");
    run(std::process::Command::new("docker-registry").args(["garbage-collect", "--delete-untagged"]).arg(config))?;
    // The control: the collection bites.
    ensure(client.head(&by_digest(&untagged))?.is_none(), "what no tag names is there still")?;
    ensure(client.head(&by_digest(&staged))?.is_some(), "what was staged was collected")?;
    ensure(shop.pull("dind", &staged)?.len() == BOTH.len(), "a platform was collected")
}

/// An index of Docker's types over manifests of OCI's: what is derived keeps both, and the record says so.
fn mixed() -> Result<(), Failed> {
    let shop = Shop::open()?;
    let base = shop.base("dind", &BOTH, Family::Oci)?;
    let index = Index::new(Family::Docker, base.index.manifests())?;
    let tagged = Reference::Tagged(shop.repository("dind")?.tagged("1")?);
    Client::new(Options::default())?.put_manifest(&tagged, index.media_type(), index.bytes())?;
    let records = one_image(&shop)?;
    let leg = read(&records[0])?;
    ensure(leg["images"][0]["format"] == "docker", format!("{leg:#}"))?;
    ensure(leg["images"][0]["platforms"][BOTH[0]]["format"] == "oci", format!("{leg:#}"))?;
    done(&merge(&records, shop.path("merged"))?)?;
    let published = shop.published("dind", "ours")?;
    ensure(published.family() == Family::Docker, published.media_type())?;
    let families: Vec<_> = shop.pull("dind", &published)?.iter().map(oci::Manifest::family).collect();
    ensure(families == [Family::Oci; 2], format!("{families:?}"))
}

/// The records say that the base is a stand-in, as those of machines do that reach no registry for it: each of its own platform alone.
fn standins() -> Result<(), Failed> {
    let shop = Shop::open()?;
    shop.base("dind", &BOTH, Family::Oci)?;
    let records = one_image(&shop)?;
    let digests = [Digest::of(b"amd64"), Digest::of(b"arm64")];
    let write = |leg: usize, packages: &[&str]| -> Result<(), Failed> {
        let mut record = read(&records[leg])?;
        let base = &mut record["images"][0]["base"];
        base["source"] = "standin".into();
        base["digest"] = digests[leg].to_string().into();
        base["packages"] = serde_json::json!(packages);
        Ok(fs::write(&records[leg], record.to_string())?)
    };
    let merged = |records: &[&PathBuf], more: &[&str]| -> Result<_, Failed> {
        let mut command = command(["merge", "--allow-unjudged"]);
        Ok(command.args(more).args(records).arg("--out").arg(shop.path("merged")).output()?)
    };
    write(0, &["docker.io=1", "runc=1"])?;
    write(1, &["docker.io=1", "runc=2"])?;
    let both = [&records[0], &records[1]];
    let output = merged(&both, &["--allow-standin"])?;
    refused(&output, &["compare legs of ours: base: expected", "runc=1", "found", "runc=2"])?;
    write(1, &["docker.io=1", "runc=1"])?;
    refused(&merged(&both, &[])?, &["expected the registry's base", "--allow-standin"])?;
    done(&merged(&both, &["--allow-standin"])?)?;
    let index = shop.published("dind", "ours")?;
    let document: Value = serde_json::from_slice(index.bytes())?;
    let found = &document["annotations"]["org.opencontainers.image.base.digest"];
    ensure(*found == digests[0].to_string(), format!("expected that of the first platform's leg, found {found}"))?;
    // In whichever order the records are named, it is one image.
    done(&merged(&[&records[1], &records[0]], &["--allow-standin"])?)?;
    ensure(shop.published("dind", "ours")?.digest() == index.digest(), "another order, another image")
}

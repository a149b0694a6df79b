//! Publishing as a user does it: how many requests and bytes it takes, what a registry holds then, and what is refused.

use std::fs;

use libtest_mimic::{Failed, Trial};
use oci::{Client, Digest, Family, Options};

use crate::shop::{LAYERS, Shop, digest_of, done, refused};
use crate::support::{command, ensure, lacks, trial_if};

const AMD64: &str = "linux/amd64";
const BOTH: [&str; 2] = [AMD64, "linux/arm64/v8"];

/// What one platform may cost beside its base: the base's index, manifest and configuration, two uploads, two manifests, the tag.
const REQUESTS_MAX: usize = 10;
/// What one more platform may cost.
const PLATFORM_REQUESTS_MAX: usize = 7;
/// Bytes that may go up beside layers, configurations and manifests.
const BYTES_MAX: u64 = 10 * 1024;

pub(crate) fn trials() -> Vec<Trial> {
    let registry = lacks(&["docker-registry"]);
    vec![
        trial_if("publish::one_platform_beside_its_base_in_ten_requests", registry.clone(), beside_the_base),
        trial_if("publish::beside_a_locked_base_a_tag_is_looked_at_first_in_ten_requests", registry.clone(), locked),
        trial_if(
            "publish::a_stand_in_of_every_platform_where_it_is_allowed",
            lacks(&["mmdebstrap", "docker-registry"]),
            standins,
        ),
        trial_if("publish::f33_elsewhere_in_the_registry_by_one_mount_a_layer", registry.clone(), elsewhere),
        trial_if("publish::f20_one_more_platform_in_seven_requests", registry.clone(), one_more_platform),
        trial_if("publish::into_another_registry", registry.clone(), another_registry),
        trial_if("publish::f51_a_tag_that_names_another_image_stays", registry.clone(), a_tag_stays),
        trial_if("publish::f24_index_and_children_name_their_own_bases", registry.clone(), base_names),
        trial_if("publish::f17_a_platform_is_spelled_as_its_base_spells_it", registry.clone(), spelling),
        trial_if("publish::f02_f03_types_are_the_bases", registry.clone(), types),
        trial_if("publish::missing_layers_are_made_good", registry.clone(), repair),
        trial_if("publish::f58_legs_are_kept_by_a_tag_and_merged", registry.clone(), legs),
        trial_if("publish::legs_that_do_not_fit_are_refused", registry, odd_legs),
    ]
}

fn count(requests: &[String], start: &str) -> usize {
    requests.iter().filter(|request| request.starts_with(start)).count()
}

fn beside_the_base() -> Result<(), Failed> {
    let mut shop = Shop::open()?;
    shop.base("dind", &[AMD64], Family::Oci)?;
    shop.definition("ours", "dind", &[AMD64], "floating: true")?;
    shop.requests()?;
    shop.wire.bytes();
    done(&shop.push("dind", &[])?)?;
    let requests = shop.requests()?;
    let (up, _) = shop.wire.bytes();
    ensure(requests.len() <= REQUESTS_MAX, format!("{} requests: {requests:#?}", requests.len()))?;
    ensure(count(&requests, "GET /v2/dind/blobs") == 1, format!("the configuration alone is fetched: {requests:#?}"))?;
    let last = requests.last().map(String::as_str);
    ensure(last == Some("HEAD /v2/dind/manifests/ours"), format!("the tag is not read back: {requests:#?}"))?;
    let index = shop.published("dind", "ours")?;
    ensure(index.digest() == digest_of(&shop.record()?, 0)?, "the tag names what the record names")?;
    let manifest = &shop.pull("dind", &index)?[0];
    ensure(manifest.layers().len() == LAYERS + 1, format!("{manifest:?}"))?;
    let new =
        manifest.layers()[LAYERS].size + manifest.config().size + (manifest.bytes().len() + index.bytes().len()) as u64;
    ensure(up <= new + BYTES_MAX, format!("expected at most {new} bytes and {BYTES_MAX} more, found {up}"))?;
    // Nothing to do: one request for its one tag.
    shop.requests()?;
    done(&shop.push("dind", &[])?)?;
    let requests = shop.requests()?;
    ensure(requests == ["HEAD /v2/dind/manifests/ours"], format!("{requests:#?}"))
}

/// A machine that has nothing in its cache, and a lock; the tag is one that must not move.
fn locked() -> Result<(), Failed> {
    let mut shop = Shop::open()?;
    let base = shop.base("dind", &[AMD64], Family::Oci)?;
    shop.definition("ours", "dind", &[AMD64], "")?;
    let (index, child) = (base.index.digest(), base.index.manifests()[0].digest);
    let name = format!("{}:1", shop.repository("dind")?);
    let entry = format!("{name}:\n  index: {index}\n  format: oci\n  platforms:\n    {AMD64}: {child}\n");
    fs::write(shop.path("images/bases.lock"), entry)?;
    shop.requests()?;
    done(&shop.push("dind", &["--locked"])?)?;
    let requests = shop.requests()?;
    ensure(requests.len() <= REQUESTS_MAX, format!("{} requests: {requests:#?}", requests.len()))?;
    ensure(count(&requests, "HEAD /v2/dind/manifests/ours") == 2, format!("before and after: {requests:#?}"))?;
    ensure(shop.record()?["images"][0]["base"]["digest"] == index.to_string(), "the record names the locked index")
}

fn standins() -> Result<(), Failed> {
    let shop = Shop::open()?;
    let to = shop.repository("standins")?.to_string();
    let mut command =
        command(["build-images", "dind", "--base", "standin", "--all-platforms", "--suite", "none", "--push", &to]);
    command.args(["--allow-standin", "--allow-unjudged", "--out"]).arg(shop.path("out"));
    done(&command.output()?)?;
    let index = shop.published("standins", "20-dind")?;
    ensure(shop.pull("standins", &index)?.len() == BOTH.len(), format!("{index:?}"))
}

fn elsewhere() -> Result<(), Failed> {
    let mut shop = Shop::open()?;
    shop.base("base", &[AMD64], Family::Docker)?;
    shop.definition("ours", "base", &[AMD64], "floating: true")?;
    shop.requests()?;
    done(&shop.push("other/place", &[])?)?;
    let requests = shop.requests()?;
    ensure(requests.len() <= REQUESTS_MAX + LAYERS, format!("{} requests: {requests:#?}", requests.len()))?;
    ensure(count(&requests, "HEAD /v2/other/place/blobs") == 0, format!("{requests:#?}"))?;
    let index = shop.published("other/place", "ours")?;
    shop.pull("other/place", &index).map(drop)
}

fn one_more_platform() -> Result<(), Failed> {
    let mut shop = Shop::open()?;
    shop.base("dind", &BOTH, Family::Oci)?;
    shop.definition("ours", "dind", &BOTH, "floating: true")?;
    shop.requests()?;
    done(&shop.push("dind", &[])?)?;
    let requests = shop.requests()?;
    ensure(
        requests.len() <= REQUESTS_MAX + PLATFORM_REQUESTS_MAX,
        format!("{} requests: {requests:#?}", requests.len()),
    )?;
    // Children before the index, the tag last, and then only looked at.
    let index = requests.iter().position(|request| request == "PUT /v2/dind/manifests/ours").ok_or("no tag")?;
    ensure(requests[index + 1..] == ["HEAD /v2/dind/manifests/ours"], format!("{requests:#?}"))?;
    let published = shop.published("dind", "ours")?;
    for child in published.manifests() {
        let put = format!("PUT /v2/dind/manifests/{}", child.digest);
        ensure(requests[..index].contains(&put), format!("expected {put} before the index: {requests:#?}"))?;
    }
    ensure(shop.pull("dind", &published)?.len() == 2, "two platforms")
}

fn another_registry() -> Result<(), Failed> {
    let mut from = Shop::open()?;
    let base = from.base("base", &[AMD64], Family::Oci)?;
    let mut to = Shop::open()?;
    from.definition("ours", "base", &[AMD64], "")?;
    let target = to.repository("far/away")?.to_string();
    let push =
        |from: &Shop| from.build(&["--suite", "none", "--allow-unjudged", "--platform", AMD64, "--push", &target]);
    from.requests()?;
    done(&push(&from)?)?;
    let fetched = count(&from.requests()?, "GET /v2/base/blobs");
    ensure(fetched == LAYERS + 1, format!("expected each layer and the configuration once, found {fetched}"))?;
    let requests = to.requests()?;
    ensure(count(&requests, "POST ") == LAYERS + 2, format!("expected an upload for each blob: {requests:#?}"))?;
    let index = to.published("far/away", "ours")?;
    to.pull("far/away", &index)?;
    // A second image of the base brings its own blobs only.
    from.definition("more", "base", &[AMD64], "env: { MORE: yes }")?;
    done(&push(&from)?)?;
    let requests = to.requests()?;
    ensure(count(&requests, "POST ") <= 2, format!("expected at most two uploads: {requests:#?}"))?;
    ensure(base.layers.len() == 1 && count(&from.requests()?, "GET /v2/base/blobs") == 0, "the base was fetched again")
}

fn a_tag_stays() -> Result<(), Failed> {
    let mut shop = Shop::open()?;
    shop.base("dind", &[AMD64], Family::Oci)?;
    shop.definition("ours", "dind", &[AMD64], "")?;
    done(&shop.push("dind", &[])?)?;
    let before = shop.published("dind", "ours")?.digest();
    shop.definition("ours", "dind", &[AMD64], "env: { NEW: thing }")?;
    shop.requests()?;
    let output = shop.push("dind", &[])?;
    let record = shop.record()?;
    let after = digest_of(&record, 0)?;
    refused(&output, &["dind:ours", &before.to_string(), &after.to_string(), "hint:", "--move-tags"])?;
    let requests = shop.requests()?;
    ensure(
        count(&requests, "PUT ") + count(&requests, "POST ") == 0,
        format!("nothing is sent in vain: {requests:#?}"),
    )?;
    ensure(shop.published("dind", "ours")?.digest() == before, "the tag moved")?;
    ensure(record["images"][0]["published"].is_null(), format!("{record}"))?;
    done(&shop.push("dind", &["--move-tags"])?)?;
    ensure(shop.published("dind", "ours")?.digest() == after, "the tag did not move")?;
    ensure(shop.record()?["images"][0]["published"]["tags"][0] == "ours", "the record does not say where it is")
}

fn base_names() -> Result<(), Failed> {
    let shop = Shop::open()?;
    let base = shop.base("base", &BOTH, Family::Oci)?;
    shop.definition("ours", "base", &BOTH, "")?;
    done(&shop.push("base", &[])?)?;
    let index = shop.published("base", "ours")?;
    let annotations = |bytes: &[u8]| -> Result<_, Failed> {
        let document: serde_json::Value = serde_json::from_slice(bytes)?;
        let of = |key| document["annotations"][format!("org.opencontainers.image.base.{key}")].clone();
        Ok((of("name"), of("digest")))
    };
    let name = format!("{}:1", shop.repository("base")?);
    let expected = |digest: Digest| (name.clone().into(), digest.to_string().into());
    ensure(annotations(index.bytes())? == expected(base.index.digest()), "the index names another base")?;
    for (manifest, child) in shop.pull("base", &index)?.iter().zip(base.index.manifests()) {
        ensure(annotations(manifest.bytes())? == expected(child.digest), "a manifest names another base")?;
    }
    Ok(())
}

fn spelling() -> Result<(), Failed> {
    let shop = Shop::open()?;
    let base = shop.base("base", &["linux/arm64"], Family::Oci)?;
    shop.definition("ours", "base", &["linux/arm64/v8"], "")?;
    done(&shop.push("base", &[])?)?;
    let (ours, theirs) = (shop.published("base", "ours")?, &base.index);
    let (ours, theirs) = (&ours.manifests()[0].platform, &theirs.manifests()[0].platform);
    ensure(ours == theirs, format!("expected {theirs:?}, found {ours:?}"))
}

fn types() -> Result<(), Failed> {
    let shop = Shop::open()?;
    shop.base("docker", &BOTH, Family::Docker)?;
    shop.base("oci", &BOTH, Family::Oci)?;
    for (base, arguments, family) in [
        ("docker", &["--move-tags"][..], Family::Docker),
        ("oci", &["--move-tags"], Family::Oci),
        ("docker", &["--move-tags", "--format", "oci"], Family::Oci),
    ] {
        shop.definition("ours", base, &BOTH, "")?;
        done(&shop.push("types", arguments)?)?;
        let index = shop.published("types", "ours")?;
        ensure(family.holds(index.media_type()), format!("{base} {arguments:?}: {}", index.media_type()))?;
        for manifest in shop.pull("types", &index)? {
            let named = manifest.layers().iter().chain([manifest.config()]).map(|blob| &blob.media_type);
            for media_type in named.chain([&manifest.media_type().to_owned()]) {
                ensure(family.holds(media_type), format!("{base} {arguments:?}: {media_type}"))?;
            }
        }
        // The layout is OCI's in any case, and the record names both.
        let record = shop.record()?;
        let layout = oci::Layout::open(&shop.path("out/ours"))?.index()?;
        let local = layout.manifests()[0].digest;
        let expected = if local == index.digest() { serde_json::Value::Null } else { local.to_string().into() };
        ensure(Family::Oci.holds(&layout.manifests()[0].media_type), format!("{layout:?}"))?;
        ensure(record["images"][0]["layout"] == expected, format!("{record:#}"))?;
        ensure(expected.is_null() == (family == Family::Oci), format!("{base} {arguments:?}: {expected}"))?;
    }
    Ok(())
}

/// A repository that lost a layer which everybody thinks is there: the manifest's refusal tells, and the layer is sent.
fn repair() -> Result<(), Failed> {
    let mut shop = Shop::open()?;
    let base = shop.base("base", &[AMD64], Family::Oci)?;
    shop.definition("ours", "base", &[AMD64], "")?;
    // The base's own repository forgets a layer; another one still has it.
    let layer = &base.layers[&oci::Platform::parse(AMD64)?][3];
    let layers = "docker/registry/v2/repositories/base/_layers/sha256";
    let link = shop.registry.storage().join(layers).join(layer.digest.hex());
    let output = shop.build(&["--suite", "none", "--platform", AMD64])?;
    done(&output)?;
    fs::remove_dir_all(&link)?;
    shop.requests()?;
    let to = shop.repository("base")?.to_string();
    let mut publish = command(["publish", &to, "--allow-unjudged", "--out"]);
    done(&publish.arg(shop.path("out")).output()?)?;
    let requests = shop.requests()?;
    ensure(count(&requests, "POST ") == 3, format!("ours, the configuration and the lost layer: {requests:#?}"))?;
    let index = shop.published("base", "ours")?;
    shop.pull("base", &index)?;
    // Elsewhere in the registry the mount of a layer that the base's repository lost is refused, and the layer sent into its session.
    fs::remove_dir_all(&link)?;
    shop.requests()?;
    let to = shop.repository("elsewhere")?.to_string();
    let mut publish = command(["publish", &to, "--allow-unjudged", "--out"]);
    done(&publish.arg(shop.path("out")).output()?)?;
    let requests = shop.requests()?;
    ensure(
        count(&requests, "PUT /v2/elsewhere/blobs/uploads/") == 3,
        format!("ours, the configuration and the lost layer: {requests:#?}"),
    )?;
    let index = shop.published("elsewhere", "ours")?;
    shop.pull("elsewhere", &index).map(drop)
}

/// One leg for each platform, each by a run of its own.
fn leg(shop: &Shop, platform: &str, out: &str) -> Result<std::path::PathBuf, Failed> {
    let to = shop.repository("dind")?.to_string();
    let mut command =
        command(["build-images", "--base", "registry", "--suite", "none", "--allow-unjudged", "--push-by-digest"]);
    command.args(["--platform", platform, "--push", &to, "--images"]).arg(shop.path("images"));
    let output = command.arg("--out").arg(shop.path(out)).output()?;
    done(&output)?;
    // What it printed is there for whoever reads it.
    let printed = String::from_utf8(output.stdout)?;
    let pinned = printed.strip_suffix('\n').and_then(|line| line.strip_prefix(&format!("{to}@")));
    let digest = Digest::parse(pinned.ok_or(format!("expected one line {to}@DIGEST, found {printed:?}"))?)?;
    Client::new(Options::default())?.manifest(&shop.repository("dind")?, &digest)?;
    Ok(shop.path(out).join("digests.json"))
}

fn merge(shop: &Shop, records: &[&std::path::Path], more: &[&str]) -> Result<std::process::Output, Failed> {
    Ok(command(["merge"]).args(records).arg("--out").arg(shop.path("merged")).args(more).output()?)
}

fn legs() -> Result<(), Failed> {
    let mut shop = Shop::open()?;
    shop.base("dind", &BOTH, Family::Docker)?;
    shop.definition("ours", "dind", &BOTH, "floating: true")?;
    let (amd64, arm64) = (leg(&shop, AMD64, "amd64")?, leg(&shop, "linux/arm64", "arm64")?);
    // Each leg is kept by a tag, and no index is there yet.
    let record: serde_json::Value = serde_json::from_slice(&fs::read(&amd64)?)?;
    let manifest = Digest::parse(record["images"][0]["platforms"][AMD64]["digest"].as_str().ok_or("no digest")?)?;
    let tag = record["images"][0]["published"]["tags"][0].as_str().ok_or("no tag")?;
    ensure(tag == format!("cand-{}", &manifest.hex()[..12]), format!("{record:#}"))?;
    ensure(shop.published("dind", "ours").is_err(), "the tag is there before the merge")?;
    shop.requests()?;
    let output = merge(&shop, &[&amd64, &arm64], &["--allow-unjudged"])?;
    done(&output)?;
    let requests = shop.requests()?;
    ensure(
        requests.len() == 10,
        format!("two children and both tags are looked at, one index is put under each and read back: {requests:#?}"),
    )?;
    // Of each child its manifest and its configuration: what the record says of them is not believed.
    for (start, expected) in [("GET /v2/dind/manifests/", 2), ("GET /v2/dind/blobs/", 2), ("PUT ", 2), ("HEAD ", 4)] {
        ensure(count(&requests, start) == expected, format!("expected {expected} of {start}: {requests:#?}"))?;
    }
    let index = shop.published("dind", "ours")?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure(said == format!("{}@{}\n", shop.repository("dind")?, index.digest()), said)?;
    shop.pull("dind", &index)?;
    // One machine that builds both platforms makes the same image.
    done(&shop.push("alone", &[])?)?;
    let alone = digest_of(&shop.record()?, 0)?;
    ensure(alone == index.digest(), format!("expected {alone}, as one machine makes it, found {}", index.digest()))
}

fn odd_legs() -> Result<(), Failed> {
    let shop = Shop::open()?;
    shop.base("dind", &BOTH, Family::Oci)?;
    shop.definition("ours", "dind", &BOTH, "")?;
    let (amd64, arm64) = (leg(&shop, AMD64, "amd64")?, leg(&shop, "linux/arm64", "arm64")?);
    let allow = ["--allow-unjudged"];
    refused(&merge(&shop, &[&amd64, &arm64], &[])?, &["was not judged", "hint:"])?;
    refused(&merge(&shop, &[&amd64, &amd64], &allow)?, &["linux/amd64", "expected one leg, found two"])?;
    refused(&merge(&shop, &[&shop.path("none.json")], &allow)?, &["none.json"])?;
    let text = fs::read_to_string(&arm64)?;
    let record: serde_json::Value = serde_json::from_str(&text)?;
    let child = record["images"][0]["platforms"]["linux/arm64/v8"]["digest"].as_str().ok_or("no digest")?.to_owned();
    let base = record["images"][0]["base"]["digest"].as_str().ok_or("no base")?.to_owned();
    let nothing = Digest::of(b"nothing").to_string();
    let repository = shop.repository("dind")?.to_string();
    for (what, with, expected) in [
        (base.as_str(), nothing.as_str(), &["base", "expected", &nothing][..]),
        (child.as_str(), &nothing, &[&nothing, "found nothing by that digest"]),
        (repository.as_str(), "127.0.0.1:9/elsewhere", &["127.0.0.1:9/elsewhere", &repository]),
        ("\"schema\": 1", "\"schema\": 7", &["expected schema 1, found 7"]),
        ("\"ours\"", "\"theirs\"", &[]),
    ] {
        let odd = shop.path("odd.json");
        fs::write(&odd, text.replace(what, with))?;
        let output = merge(&shop, &[&amd64, &odd], &allow)?;
        if expected.is_empty() {
            // Other images are no fault in themselves, but each then lacks a leg.
            refused(&output, &["merge ours", "found none for linux/arm64/v8", "hint:", "--allow-missing-platforms"])?;
            done(&merge(&shop, &[&amd64, &odd], &[&allow[..], &["--allow-missing-platforms"]].concat())?)?;
        } else {
            refused(&output, expected)?;
        }
    }
    Ok(())
}

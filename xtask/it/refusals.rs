//! What cannot be published, said on the command line: names that are none, records that are none, registries that are down, shut or
//! read-only. Each is one clear error, and what was built and recorded stays.

use std::fs;
use std::path::PathBuf;
use std::process::Output;

use libtest_mimic::{Failed, Trial};
use oci::Family;
use xtask::bench::{Registry, read_only};

use crate::shop::{Shop, done, refused};
use crate::support::{command, ensure, folder, lacks, trial, trial_if};

const AMD64: &str = "linux/amd64";
/// `it` with the password `p`, as `htpasswd -B` writes it.
const HTPASSWD: &str = "it:$2y$05$abcdefghijklmnopqrstuuqwWMzKt5N8p.u2GX5MuH1t19BMWuLOW\n";
/// As Docker's config.json keeps an identity: `it:p`.
const AUTH: &str = "aXQ6cA==";

pub(crate) fn trials() -> Vec<Trial> {
    let registry = lacks(&["docker-registry"]);
    vec![
        trial("refusals::a_repository_that_is_none", names),
        trial("refusals::a_record_that_is_none", records),
        trial_if("refusals::registries_that_take_nothing", registry.clone(), registries),
        trial_if("refusals::what_got_there_before_a_refusal_is_recorded", registry.clone(), half_way),
        trial_if("refusals::what_cannot_be_recorded_is_not_sent", registry.clone(), no_place_for_the_record),
        trial_if("refusals::a_tag_that_is_refused_is_not_recorded", registry, refused_tag),
    ]
}

fn names() -> Result<(), Failed> {
    let scheme = "hint: leave out the scheme";
    let tag = "hint: leave out the tag or digest";
    for (name, hint) in [
        ("registry.test/../x", ""),
        ("registry.test/x/../y", ""),
        ("registry.test/./x", ""),
        ("registry.test/x:tag", tag),
        ("registry.test/x@sha256:12", tag),
        ("https://registry.test/x", scheme),
        ("registry.test/X", ""),
        ("registry.test/x/", ""),
        ("registry.test//x", ""),
        ("registry.test/x y", ""),
        ("", ""),
    ] {
        let expected = [&format!("parse repository {name:?}: expected [HOST[:PORT]/]PATH of lower-case words"), hint];
        refused(&command(["publish", name]).output()?, &expected.map(AsRef::as_ref))?;
        refused(&command(["build-images", "--push", name]).output()?, &expected.map(AsRef::as_ref))?;
    }
    Ok(())
}

/// What may lie in the place of a record: it is refused, and not waited for or swallowed.
fn records() -> Result<(), Failed> {
    let folder = folder()?;
    let path = |name: &str| folder.path().join(name);
    let made = std::process::Command::new("mkfifo").arg(path("pipe")).status()?;
    ensure(made.success(), "make a pipe")?;
    fs::create_dir(path("folder"))?;
    // Sparse: a GiB that takes no disk.
    fs::File::create(path("huge"))?.set_len(1 << 30)?;
    fs::write(path("cut"), r#"{"schema": 1, "images": ["#)?;
    fs::write(path("bytes"), [0xff, 0xfe])?;
    fs::write(path("nest"), "[".repeat(1 << 20))?;
    fs::write(path("future"), r#"{"schema": 2, "images": []}"#)?;
    fs::write(path("empty"), r#"{"schema":1,"images":[],"reports":{"markdown":"/dev/full","junit":"/dev/full"}}"#)?;
    for (name, expected) in [
        ("pipe", "expected a regular file, found a pipe"),
        ("folder", "expected a regular file, found a folder"),
        ("huge", "expected at most 67108864 bytes, found more"),
        ("cut", "line 1 column"),
        ("bytes", "UTF-8"),
        ("nest", "recursion limit"),
        ("future", "expected schema 1, found 2"),
        ("empty", "the record names no image"),
        ("none", "No such file or directory"),
    ] {
        let merged = path("merged");
        refused(&command(["merge"]).arg(path(name)).arg("--out").arg(&merged).output()?, &[name, expected])?;
        ensure(!merged.exists(), format!("{name}: something was merged"))?;
        let out = path("out");
        fs::create_dir(&out)?;
        if name != "none" {
            fs::rename(path(name), out.join("digests.json"))?;
        }
        let output = command(["publish", "127.0.0.1:9/x", "--out"]).arg(&out).output()?;
        refused(&output, &["digests.json", expected])?;
        fs::remove_dir_all(&out)?;
    }
    // A file where the folder should be.
    fs::write(path("file"), "mine")?;
    let output = command(["publish", "127.0.0.1:9/x", "--out"]).arg(path("file")).output()?;
    refused(&output, &["file/digests.json", "Not a directory"])?;
    let output =
        command(["build-images", "--suite", "none", "--base", "standin", "--out"]).arg(path("file")).output()?;
    refused(&output, &["make", "file"])?;
    ensure(fs::read(path("file"))? == b"mine", "the file is another one")
}

/// Three registries and what each is refused with.
pub(crate) struct Refusals {
    shop: Shop,
    /// A place, what the error says there, and the folder that keeps its registry.
    pub(crate) places: Vec<(String, Vec<&'static str>)>,
    _registries: Vec<(Registry, tempfile::TempDir)>,
}

impl Refusals {
    pub(crate) fn open() -> Result<Self, Failed> {
        let shop = Shop::open()?;
        let (shut, read) = (folder()?, folder()?);
        let users = shut.path().join("users");
        fs::write(&users, HTPASSWD)?;
        let login = format!("auth: {{htpasswd: {{realm: trial, path: {}}}}}\n", users.display());
        let login = Registry::configured(shut.path(), |text| text + &login)?;
        // The read-only one has what the shop has.
        std::os::unix::fs::symlink(shop.registry.storage(), read.path().join("registry"))?;
        let reads = Registry::configured(read.path(), |text| read_only(&text))?;
        let places = vec![
            // Port 9 is discard, and nothing listens on it.
            ("127.0.0.1:9".to_owned(), vec!["127.0.0.1:9", "hint: check the name, the network"]),
            (login.host(), vec!["not authorized", "hint: log in (docker login HOST"]),
            (reads.host(), vec!["405", "hint: the registry takes nothing: it is read-only"]),
        ];
        Ok(Self { shop, places, _registries: vec![(login, shut), (reads, read)] })
    }

    fn leg(&self) -> Result<PathBuf, Failed> {
        let to = self.shop.repository("dind")?.to_string();
        let arguments = ["--suite", "none", "--allow-unjudged", "--platform", AMD64, "--push-by-digest", "--push", &to];
        done(&self.shop.build(&arguments)?)?;
        fs::rename(self.shop.path("out/digests.json"), self.shop.path("leg.json"))?;
        Ok(self.shop.path("leg.json"))
    }
}

fn publish(shop: &Shop, to: &str) -> Result<Output, Failed> {
    Ok(command(["publish", to, "--allow-unjudged", "--out"])
        .arg(shop.path("out"))
        // Nobody, so that no login of this machine's user counts.
        .env("DOCKER_CONFIG", shop.path("docker"))
        .output()?)
}

fn registries() -> Result<(), Failed> {
    let refusals = Refusals::open()?;
    let shop = &refusals.shop;
    shop.base("dind", &[AMD64], Family::Oci)?;
    shop.definition("ours", "dind", &[AMD64], "")?;
    let leg = fs::read_to_string(refusals.leg()?)?;
    done(&shop.build(&["--suite", "none", "--platform", AMD64])?)?;
    let record = fs::read(shop.path("out/digests.json"))?;
    for (host, expected) in &refusals.places {
        let expected = [&expected[..], &[host]].concat();
        let to = format!("{host}/dind");
        refused(&publish(shop, &to)?, &expected)?;
        ensure(fs::read(shop.path("out/digests.json"))? == record, format!("{host}: the record is another one"))?;

        fs::write(shop.path("odd.json"), leg.replace(&shop.repository("dind")?.to_string(), &to))?;
        let mut merge = command(["merge", "--allow-unjudged"]);
        merge.env("DOCKER_CONFIG", shop.path("docker")).arg(shop.path("odd.json"));
        refused(&merge.arg("--out").arg(shop.path("merged")).output()?, &expected)?;
        ensure(!shop.path("merged/digests.json").exists(), format!("{host}: a merge was recorded"))?;

        let arguments = ["--suite", "none", "--allow-unjudged", "--platform", AMD64, "--push", &to];
        refused(&shop.build(&arguments)?, &expected)?;
        ensure(fs::read(shop.path("out/digests.json"))? == record, format!("{host}: the record is another one"))?;
    }
    // The same is taken where nothing is in its way: by who logged in, and by the registry that may be written.
    let (login, _) = &refusals.places[1];
    fs::create_dir(shop.path("docker"))?;
    let config = format!("{{\"auths\":{{\"{login}\":{{\"auth\":\"{AUTH}\"}}}}}}");
    fs::write(shop.path("docker/config.json"), config)?;
    done(&publish(shop, &format!("{login}/dind"))?)?;
    done(&publish(shop, &shop.repository("dind")?.to_string())?)
}

fn no_place_for_the_record() -> Result<(), Failed> {
    let mut shop = Shop::open()?;
    shop.base("dind", &[AMD64], Family::Oci)?;
    shop.definition("ours", "dind", &[AMD64], "")?;
    done(&shop.build(&["--suite", "none", "--platform", AMD64])?)?;
    // Root writes everywhere, but no file into the place of a folder.
    fs::rename(shop.path("out/junit.xml"), shop.path("junit.xml"))?;
    fs::create_dir(shop.path("out/junit.xml"))?;
    shop.requests()?;
    let to = shop.repository("dind")?.to_string();
    refused(&publish(&shop, &to)?, &["write ", "junit.xml", "found a folder"])?;
    let requests = shop.requests()?;
    ensure(
        !requests.iter().any(|request| !request.starts_with("HEAD ")),
        format!("something was sent: {requests:#?}"),
    )?;
    // The same is done where the record has a place.
    fs::remove_dir(shop.path("out/junit.xml"))?;
    done(&publish(&shop, &to)?)
}

/// The second of two images is refused: the first is in the registry, and the record says so.
fn half_way() -> Result<(), Failed> {
    let shop = Shop::open()?;
    shop.base("dind", &[AMD64], Family::Oci)?;
    shop.definition("first", "dind", &[AMD64], "")?;
    shop.definition("second", "dind", &[AMD64], "env: { SECOND: yes }")?;
    done(&shop.push("dind", &["second"])?)?;
    shop.definition("second", "dind", &[AMD64], "env: { SECOND: other }")?;
    let check = |output: &Output, what: &str| -> Result<(), Failed> {
        refused(output, &["publish", "dind:second", "expected", "found", "hint:", "--move-tags"])?;
        let images = shop.record()?["images"].clone();
        ensure(images[0]["published"]["tags"][0] == "first", format!("{what}: {images:#}"))?;
        ensure(images[1]["published"].is_null(), format!("{what}: {images:#}"))
    };
    check(&shop.push("dind", &[])?, "build-images --push")?;
    done(&shop.build(&["--suite", "none", "--platform", AMD64])?)?;
    check(&publish(&shop, &shop.repository("dind")?.to_string())?, "publish")
}

/// A registry that takes everything but the tag: its folder of tags is a file.
fn refused_tag() -> Result<(), Failed> {
    let shop = Shop::open()?;
    shop.base("base", &[AMD64], Family::Oci)?;
    shop.definition("ours", "base", &[AMD64], "floating: true")?;
    let manifests = shop.registry.storage().join("docker/registry/v2/repositories/full/_manifests");
    fs::create_dir_all(&manifests)?;
    fs::write(manifests.join("tags"), "")?;
    let output = shop.push("full", &[])?;
    refused(&output, &["full:ours"])?;
    let record = shop.record()?;
    ensure(record["images"][0]["published"].is_null(), format!("the record claims what is not there: {record:#}"))
}

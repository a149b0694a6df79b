//! SIGKILL at many moments of a pull and of a publication: what is left must mislead nobody, and the next run ends as if nothing had
//! been. The moments are bytes on the wire and lines of progress, so that they fall into the work however fast the machine is.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use libtest_mimic::{Failed, Trial};
use oci::{Digest, Family};

use crate::random::Random;
use crate::shop::{Shop, digest_of, done};
use crate::support::{command, ensure, lacks, repository, trial_if};

const AMD64: &str = "linux/amd64";
const BOTH: [&str; 2] = [AMD64, "linux/arm64/v8"];

/// What each layer of the base is made larger by.
const PADDING: usize = 512 * 1024;
/// How many pulls are killed at a byte, and how many after a line of progress.
const PULLS: [usize; 2] = [14, 6];
/// How many publications are killed.
const PUBLICATIONS: usize = 10;
/// The lines of progress of a whole run: base, layers, init, derive, recorded.
const LINES: u64 = 5;
/// The last bytes of a publication: manifests, index, tag.
const LAST_BYTES: u64 = 16 * 1024;
/// How long a run may take to reach the moment, or its end.
const MOMENT_TIMEOUT: Duration = Duration::from_secs(120);
const POLL_INTERVAL: Duration = Duration::from_micros(200);

pub(crate) fn trials() -> Vec<Trial> {
    let registry = lacks(&["docker-registry"]);
    vec![
        trial_if("killed::a_pull_killed_at_twenty_moments_ends_the_same", registry.clone(), pulls),
        trial_if("killed::a_publication_killed_at_ten_moments_ends_the_same", registry, publications),
    ]
}

/// When a run is killed.
#[derive(Debug, Clone, Copy)]
enum Moment {
    /// So many bytes have come over the wire.
    Down(u64),
    /// So many bytes have gone over the wire.
    Up(u64),
    /// So many lines of progress were printed.
    Lines(u64),
}

/// Starts the command, kills it at the moment, and says whether it still ran.
fn kill_at(moment: Moment, mut command: Command, shop: &Shop) -> Result<bool, Failed> {
    shop.wire.bytes();
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
    let mut progress = BufReader::new(child.stderr.take().ok_or("no stderr")?);
    if let Moment::Lines(lines) = moment {
        for _ in 0..lines {
            progress.read_line(&mut String::new())?;
        }
    } else {
        wait_for_bytes(moment, &mut child, shop)?;
    }
    // SIGKILL; it may have ended before, which its status tells.
    child.kill()?;
    Ok(child.wait()?.code().is_none())
}

fn wait_for_bytes(moment: Moment, child: &mut Child, shop: &Shop) -> Result<(), Failed> {
    let deadline = Instant::now() + MOMENT_TIMEOUT;
    let (mut up, mut down) = (0, 0);
    loop {
        let (more_up, more_down) = shop.wire.bytes();
        (up, down) = (up + more_up, down + more_down);
        let reached = match moment {
            Moment::Down(bytes) => down >= bytes,
            Moment::Up(bytes) => up >= bytes,
            Moment::Lines(_) => true,
        };
        if reached || child.try_wait()?.is_some() {
            return Ok(());
        }
        ensure(Instant::now() < deadline, format!("{moment:?}: not reached in {MOMENT_TIMEOUT:?}"))?;
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// `build-images` with a cache of its own: a mount namespace of its own has another folder in the place of target/cache.
fn build(shop: &Shop, cache: &Path) -> Result<Command, Failed> {
    fs::create_dir_all(cache)?;
    let mut run = Command::new("unshare");
    run.args(["--mount", "--propagation", "private", "sh", "-c", "mount --bind \"$0\" \"$1\" && shift && exec \"$@\""]);
    run.arg(cache).arg(repository().join("target/cache"));
    let xtask = command(["build-images", "--base", "registry", "--suite", "none", "--platform", AMD64, "--images"]);
    run.arg(xtask.get_program()).args(xtask.get_args()).arg(shop.path("images")).arg("--out").arg(shop.path("out"));
    run.current_dir(repository()).env_remove("SOURCE_DATE_EPOCH");
    Ok(run)
}

fn pulls() -> Result<(), Failed> {
    let shop = Shop::open()?;
    shop.padded_base("dind", &[AMD64], Family::Oci, PADDING)?;
    shop.definition("ours", "dind", &[AMD64], "")?;
    let cache = shop.path("cache");
    let lock = shop.path("images/bases.lock");
    shop.wire.bytes();
    done(&build(&shop, &cache)?.output()?)?;
    let (_, total) = shop.wire.bytes();
    let (digest, locked) = (digest_of(&shop.record()?, 0)?, fs::read(&lock)?);
    let whole = blobs(&cache)?;

    let mut random = Random::seeded_by("pulls");
    let bytes: Vec<_> = (0..PULLS[0]).map(|_| Moment::Down(random.below(total))).collect();
    let lines: Vec<_> = (0..PULLS[1]).map(|_| Moment::Lines(1 + random.below(LINES))).collect();
    let (mut hits, mut halves) = (0, 0);
    for moment in [bytes, lines].concat() {
        for left in [&cache, &shop.path("out")] {
            fs::remove_dir_all(left)?;
        }
        fs::remove_file(&lock)?;
        hits += usize::from(kill_at(moment, build(&shop, &cache)?, &shop)?);
        let left = blobs(&cache).map_err(|error| format!("{moment:?}: {error:?}"))?;
        halves += usize::from(left != whole);
        ensure(!lock.exists() || fs::read(&lock)? == locked, format!("{moment:?}: the lock is half-written"))?;

        done(&build(&shop, &cache)?.output()?)?;
        let found = digest_of(&shop.record()?, 0)?;
        ensure(found == digest, format!("{moment:?}: expected {digest}, found {found}"))?;
        ensure(fs::read(&lock)? == locked, format!("{moment:?}: the lock is another one"))?;
        ensure(blobs(&cache)? == whole, format!("{moment:?}: the cache has other blobs"))?;
        for folder in [&cache, &shop.path("out"), &shop.path("images")] {
            no_rest(folder).map_err(|error| format!("{moment:?}: {error:?}"))?;
        }
    }
    // A kill that always comes too late proves nothing.
    let all = PULLS.iter().sum::<usize>();
    ensure(hits * 4 >= all * 3, format!("only {hits} of {all} runs were still going"))?;
    ensure(halves * 2 >= all, format!("only {halves} of {all} runs left a pull that was not done"))
}

/// The blobs of the cache of bases, each of which has the bytes that its name says; partial ones are no blobs.
fn blobs(cache: &Path) -> Result<BTreeSet<String>, Failed> {
    let mut found = BTreeSet::new();
    let folder = cache.join("bases/blobs/sha256");
    for entry in fs::read_dir(&folder).into_iter().flatten() {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.starts_with('.') {
            continue;
        }
        let bytes = fs::read(&path)?;
        ensure(Digest::of(&bytes).hex() == name, format!("{} holds {}", path.display(), Digest::of(&bytes)))?;
        found.insert(name);
    }
    Ok(found)
}

/// Fails if a file is there that was on its way to another name.
fn no_rest(folder: &Path) -> Result<(), Failed> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let rest = name.starts_with(".partial") || name.ends_with(".partial") || name.ends_with(".new");
        ensure(!rest, format!("{} is left", path.display()))?;
        if path.is_dir() && !path.is_symlink() {
            no_rest(&path)?;
        }
    }
    Ok(())
}

fn publications() -> Result<(), Failed> {
    let from = Shop::open()?;
    let to = Shop::open()?;
    from.padded_base("dind", &BOTH, Family::Oci, PADDING / 8)?;
    from.definition("ours", "dind", &BOTH, "")?;
    done(&from.build(&["--suite", "none", "--all-platforms"])?)?;
    let digest = digest_of(&from.record()?, 0)?;
    let publish = |path: &str| -> Result<Command, Failed> {
        let mut publish = command(["publish", &to.repository(path)?.to_string(), "--allow-unjudged", "--out"]);
        publish.arg(from.path("out"));
        Ok(publish)
    };
    to.wire.bytes();
    done(&publish("whole")?.output()?)?;
    let (total, _) = to.wire.bytes();

    let mut random = Random::seeded_by("publications");
    let mut hits = 0;
    for number in 0..PUBLICATIONS {
        // Every other one near the end, where manifests and the tag are put.
        let start = if number % 2 == 0 { 0 } else { total - LAST_BYTES };
        let moment = Moment::Up(start + random.below(total - start));
        let path = format!("killed-{number}");
        hits += usize::from(kill_at(moment, publish(&path)?, &to)?);
        // Whatever the tag names is there to the last byte.
        if let Ok(index) = to.published(&path, "ours") {
            ensure(index.digest() == digest, format!("{moment:?}: the tag names {}", index.digest()))?;
            to.pull(&path, &index).map_err(|error| format!("{moment:?}: {error:?}"))?;
        }
        let record = from.record().map_err(|error| format!("{moment:?}: {error:?}"))?;
        ensure(digest_of(&record, 0)? == digest, format!("{moment:?}: the record names another image"))?;

        done(&publish(&path)?.output()?)?;
        let index = to.published(&path, "ours")?;
        ensure(index.digest() == digest, format!("{moment:?}: expected {digest}, found {}", index.digest()))?;
        ensure(to.pull(&path, &index)?.len() == BOTH.len(), format!("{moment:?}: {index:?}"))?;
        no_rest(&from.path("out")).map_err(|error| format!("{moment:?}: {error:?}"))?;
    }
    ensure(hits * 4 >= PUBLICATIONS * 3, format!("only {hits} of {PUBLICATIONS} runs were still going"))
}

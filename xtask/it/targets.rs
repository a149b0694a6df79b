//! Targets that refuse a promotion, each for another reason, and promotions that meet at one target.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use libtest_mimic::{Failed, Trial};

use crate::lenient::{Lenient, Sparse};
use crate::promote::{Counter, denied};
use crate::refusals::Refusals;
use crate::shop::done;
use crate::support::{command, ensure, lacks, repository, said, trial_if};

pub(crate) fn trials() -> Vec<Trial> {
    let registry = lacks(&["docker-registry"]);
    vec![
        trial_if("targets::one_that_refuses_is_one_clear_error", registry.clone(), refusing),
        trial_if("targets::of_two_promotions_at_once_one_has_the_tag", registry.clone(), two_at_once),
        trial_if("targets::of_two_machines_one_has_the_tag", registry.clone(), two_machines),
        trial_if("targets::a_tag_that_somebody_else_got_is_an_error", registry.clone(), rival),
        trial_if("targets::children_come_before_the_index_where_nothing_demands_it", registry.clone(), sparse),
        trial_if("targets::an_index_without_its_children_is_made_whole", registry.clone(), repaired),
        trial_if("targets::a_tag_that_cannot_be_asked_for_has_its_line", registry.clone(), shut),
        trial_if("targets::what_a_killed_run_left_is_swept", registry, swept),
    ]
}

/// A registry that answers every request in the same way; stops when dropped.
struct Stubborn {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Stubborn {
    /// `answer`: everything after `HTTP/1.1 `.
    fn start(answer: &'static str) -> Result<Self, Failed> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let stop = Arc::<AtomicBool>::default();
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if stopped.load(Ordering::SeqCst) {
                    return;
                }
                // A client that has gone needs no answer.
                let _ = stream.and_then(|stream| reply(&stream, answer));
            }
        });
        Ok(Self { address, stop, thread: Some(thread) })
    }
}

fn reply(mut stream: &TcpStream, answer: &str) -> std::io::Result<()> {
    let head = BufReader::new(stream).lines().map_while(Result::ok);
    head.take_while(|line| !line.is_empty()).for_each(drop);
    write!(stream, "HTTP/1.1 {answer}")
}

impl Drop for Stubborn {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        let woken = TcpStream::connect(self.address);
        if let Some(thread) = self.thread.take().filter(|_| woken.is_ok()) {
            let _ = thread.join();
        }
    }
}

/// How often two promotions meet.
const ROUNDS: usize = 5;
const QUOTA: &str = "429 Too Many Requests\r\nRetry-After: 21600\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
const FORBIDDEN: &str = "403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
fn refusing() -> Result<(), Failed> {
    let counter = Counter::open()?;
    let text = fs::read_to_string(counter.shop.path("promotion.yaml"))?;
    let users = counter.shop.repository("users")?.to_string();
    let refusals = Refusals::open()?;
    let (quota, forbidden) = (Stubborn::start(QUOTA)?, Stubborn::start(FORBIDDEN)?);
    let mut places = refusals.places.clone();
    places.push((quota.address.to_string(), vec!["21600 s"]));
    places.push((forbidden.address.to_string(), vec!["not authorized", "hint: log in"]));
    for (place, mut expected) in places {
        counter.write(&text.replace(&users, &format!("{place}/users")))?;
        expected.push("promote dind");
        denied(&counter.promote(&["--confirm"])?, 2, &expected)?;
    }
    // The control: the target that refuses nothing takes it.
    counter.write(&text)?;
    ensure(counter.promote(&["--confirm"])?.status.success(), "the promotion itself is refused")?;
    ensure(counter.names("20-1") == Some(counter.digest), "nothing was promoted")
}

/// Two images for one immutable tag: whoever comes first has it, and the other one sees that.
fn two_at_once() -> Result<(), Failed> {
    let counter = Counter::open()?;
    let other = counter.another()?;
    let text = fs::read_to_string(counter.shop.path("promotion.yaml"))?;
    for round in 0..ROUNDS {
        let target = format!("/users-{round}");
        counter.write(&text.replace("/users", &target))?;
        let rival = counter.shop.path("rival.yaml");
        fs::write(&rival, text.replace("/users", &target).replace(&counter.digest.to_string(), &other.to_string()))?;
        let start = |file: &Path| {
            let mut command = command(["promote", "--confirm", "--file"]);
            command.arg(file).arg("--record").arg(counter.shop.path("both.json"));
            command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn()
        };
        let both = [start(&counter.shop.path("promotion.yaml"))?, start(&rival)?];
        let outputs = both.map(std::process::Child::wait_with_output);
        let mut winners = 0;
        for output in outputs {
            let output = output?;
            if output.status.success() {
                winners += 1;
            } else {
                ensure(String::from_utf8_lossy(&output.stderr).contains("never moves"), said(&output))?;
            }
        }
        ensure(winners == 1, format!("round {round}: expected one winner, found {winners}"))?;
        let repository = target.trim_start_matches('/');
        let index = counter.shop.published(repository, "20-1")?;
        ensure(counter.shop.published(repository, "20-dind")?.digest() == index.digest(), "each has a tag")?;
        counter.shop.pull(repository, &index)?;
    }
    Ok(())
}

/// The same, from machines that share no cache: only the registry can tell, and it takes both. Each has a file system of its own in the
/// cache's place.
fn two_machines() -> Result<(), Failed> {
    let (counter, target) = lenient(Sparse::Taken)?;
    let other = counter.another()?;
    target.state().meeting = Some("20-1");
    let text = fs::read_to_string(counter.shop.path("promotion.yaml"))?.replace("20-dind: floating, ", "");
    counter.write(&text)?;
    let rival = counter.shop.path("rival.yaml");
    fs::write(&rival, text.replace(&counter.digest.to_string(), &other.to_string()))?;
    let cache = repository().join("target/cache/promote");
    fs::create_dir_all(&cache)?;
    let start = |file: &Path| {
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", "mount -t tmpfs tmpfs \"$1\" && shift && exec \"$@\"", "sh"]);
        command.arg(&cache).args([env!("CARGO_BIN_EXE_xtask"), "promote", "--confirm", "--file"]);
        command.arg(file).arg("--record").arg(counter.shop.path("both.json"));
        command.current_dir(repository()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()
    };
    let both = [start(&counter.shop.path("promotion.yaml"))?, start(&rival)?];
    let mut winners = Vec::new();
    for (child, digest) in both.into_iter().zip([counter.digest, other]) {
        let output = child.wait_with_output()?;
        if output.status.success() {
            winners.push(digest.to_string());
        } else {
            let errors = String::from_utf8_lossy(&output.stderr);
            ensure(output.status.code() == Some(2) && errors.contains("read back tag"), said(&output))?;
        }
    }
    let named = target.state().named("users", "20-1").map(|digest| digest.to_string());
    ensure(winners.len() == 1 && winners.first() == named.as_ref(), format!("{winners:?} won, {named:?} is there"))
}

/// A counter whose images go to a registry of the trial's own.
fn lenient(sparse: Sparse) -> Result<(Counter, Lenient), Failed> {
    let (counter, target) = (Counter::open()?, Lenient::start(sparse)?);
    let text = fs::read_to_string(counter.shop.path("promotion.yaml"))?;
    let users = counter.shop.repository("users")?.to_string();
    counter.write(&text.replace(&users, &format!("{}/users", target.host())))?;
    Ok((counter, target))
}

fn rival() -> Result<(), Failed> {
    let (counter, target) = lenient(Sparse::Taken)?;
    let other = counter.another()?;
    let bytes = counter.shop.published("staging", "dind")?.bytes().to_vec();
    target.state().keep("users", &other.to_string(), &bytes);
    target.state().rival = Some(("20-1", other));
    let output = counter.promote(&["--confirm"])?;
    denied(&output, 2, &["read back", "20-1", &counter.digest.to_string(), &other.to_string(), "hint:"])?;
    let table = String::from_utf8_lossy(&output.stdout);
    let fate = |tag: &str, fate: &str| table.lines().any(|line| line.contains(tag) && line.contains(fate));
    ensure(fate("20-1 |", "refused: ") && fate("20-dind |", "not reached"), said(&output))?;
    // The control: nobody else is there.
    target.state().rival = None;
    counter.write(&fs::read_to_string(counter.shop.path("promotion.yaml"))?.replace("20-1:", "20-2:"))?;
    done(&counter.promote(&["--confirm"])?)
}

fn sparse() -> Result<(), Failed> {
    let (counter, target) = lenient(Sparse::Taken)?;
    done(&counter.promote(&["--confirm"])?)?;
    let child = counter.shop.published("staging", "dind")?.manifests()[0].digest.to_string();
    let mut state = target.state();
    let requests = state.requests();
    ensure(state.has("users", &child), format!("a tag names what is not there: {requests:#?}"))?;
    let last = |name: &str| requests.iter().rposition(|request| request == &format!("PUT users/manifests/{name}"));
    let first = |name: &str| requests.iter().position(|request| request == &format!("PUT users/manifests/{name}"));
    ensure(last(&child).is_some() && last(&child) < first("20-1"), format!("{requests:#?}"))?;
    ensure(last(&child) < first("20-dind"), format!("{requests:#?}"))
}

/// The index is there by its digest and what it names is not: whatever words that is refused in, it is brought, once.
fn repaired() -> Result<(), Failed> {
    for (status, code) in [(400, "MANIFEST_INVALID"), (404, "MANIFEST_UNKNOWN"), (400, "MANIFEST_BLOB_UNKNOWN")] {
        let (counter, target) = lenient(Sparse::Refused(status, code))?;
        let index = counter.shop.published("staging", "dind")?;
        target.state().keep("users", &index.digest().to_string(), index.bytes());
        done(&counter.promote(&["--confirm"])?)?;
        let state = target.state();
        ensure(state.has("users", "20-1"), format!("{code}: nothing was promoted"))?;
        ensure(state.has("users", &index.manifests()[0].digest.to_string()), format!("{code}: its child is missing"))?;
    }
    Ok(())
}

fn shut() -> Result<(), Failed> {
    let (counter, target) = lenient(Sparse::Taken)?;
    target.state().shut = Some(("/manifests/20-dind", "DENIED"));
    let output = counter.promote(&[])?;
    denied(&output, 2, &["20-dind", "not authorized"])?;
    let table = String::from_utf8_lossy(&output.stdout);
    ensure(table.lines().any(|line| line.contains("20-dind |") && line.contains("refused: ")), said(&output))?;
    ensure(table.lines().any(|line| line.contains("20-1 |") && line.contains("not reached")), said(&output))?;
    // A registry that is full says so in the place of a right.
    target.state().shut = Some(("/blobs/uploads/", "QUOTA_EXCEEDED"));
    denied(&counter.promote(&["--confirm"])?, 2, &["promote dind", "QUOTA_EXCEEDED", "hint: free some space"])
}

fn swept() -> Result<(), Failed> {
    let counter = Counter::open()?;
    let left = repository().join("target/cache/promote/carried-by-a-killed-run");
    fs::create_dir_all(left.join("blobs"))?;
    done(&counter.promote(&[])?)?;
    ensure(!left.exists(), format!("{} is still there", left.display()))
}

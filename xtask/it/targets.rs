//! Targets that refuse a promotion, each for another reason, and promotions that meet at one target.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use libtest_mimic::{Failed, Trial};

use crate::promote::{Counter, denied};
use crate::refusals::Refusals;
use crate::support::{command, ensure, lacks, said, trial_if};

pub(crate) fn trials() -> Vec<Trial> {
    let registry = lacks(&["docker-registry"]);
    vec![
        trial_if("targets::one_that_refuses_is_one_clear_error", registry.clone(), refusing),
        trial_if("targets::of_two_promotions_at_once_one_has_the_tag", registry, two_at_once),
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
    places.push((forbidden.address.to_string(), vec!["not authorized", "hint:"]));
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

//! Targets that refuse a promotion, each for another reason, and promotions that meet at one target.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use libtest_mimic::{Failed, Trial};

use crate::promote::{Counter, denied};
use crate::refusals::Refusals;
use crate::support::{ensure, lacks, trial_if};

pub(crate) fn trials() -> Vec<Trial> {
    let registry = lacks(&["docker-registry"]);
    vec![
        trial_if("targets::one_that_refuses_is_one_clear_error", registry.clone(), refusing),
        trial_if("targets::two_promotions_at_once_end_as_one", registry, two_at_once),
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

fn two_at_once() -> Result<(), Failed> {
    let counter = Counter::open()?;
    let start = || counter.command(&["--confirm"]).stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
    let both = [start()?, start()?];
    for child in both {
        let output = child.wait_with_output()?;
        ensure(output.status.success(), format!("one of two failed: {}", String::from_utf8_lossy(&output.stderr)))?;
    }
    let index = counter.shop.published("users", "20-1")?;
    ensure(index.digest() == counter.digest && counter.names("20-dind") == Some(counter.digest), "another digest")?;
    counter.shop.pull("users", &index).map(drop)
}

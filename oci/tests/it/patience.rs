//! The registry client's patience: what it tries again, how long it waits, and what ends it.

use std::io::Write;
use std::net::TcpStream;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use oci::{Client, Descriptor, Digest, Error, Interrupt, Layout, Options, Silent};

use crate::client::{BODY, Fetch, OK, fetch, options, repository};
use crate::server::{Request, Server, head, reply, send};
use crate::trial;

pub(crate) fn trials() -> Vec<Trial> {
    let trials: [(&str, fn()); 8] = [
        ("patience::f38_a_cut_body_is_fetched_again", a_cut_body_is_fetched_again),
        ("patience::f39_retry_after_is_obeyed", retry_after_is_obeyed),
        ("patience::f40_a_long_retry_after_fails_at_once", a_long_retry_after_fails_at_once),
        ("patience::f41_server_errors_are_retried_and_client_errors_are_not", server_errors_are_retried),
        ("patience::silence_has_a_limit", silence_has_a_limit),
        ("patience::a_body_that_drips_is_silence", a_body_that_drips_is_silence),
        ("patience::a_body_that_moves_has_no_limit", a_body_that_moves_has_no_limit),
        ("patience::an_interrupt_ends_a_transfer", an_interrupt_ends_a_transfer),
    ];
    trials.into_iter().map(|(name, test)| trial(name, &[], test)).collect()
}

fn a_cut_body_is_fetched_again() {
    let whole = reply(OK, &[], BODY);
    let cut = whole[..whole.len() - 3].to_vec();
    let (result, count) = fetch(vec![cut.clone(), Vec::new(), whole]);
    assert_eq!(count, 3, "{result:?}");
    result.unwrap();
    let (result, count) = fetch(vec![cut]);
    assert!(matches!(result, Err(Error::Cut { .. })), "{result:?}");
    assert_eq!(count, 4);
}

fn retry_after_is_obeyed() {
    let start = Instant::now();
    let (result, count) = fetch(vec![reply("429 Too Many", &[("Retry-After", "1")], b""), reply(OK, &[], BODY)]);
    result.unwrap();
    assert_eq!(count, 2);
    assert!(start.elapsed() >= Duration::from_secs(1));
}

fn a_long_retry_after_fails_at_once() {
    let body = br#"{"errors":[{"code":"TOOMANYREQUESTS","message":"pull rate limit"}]}"#;
    let (result, count) = fetch(vec![reply("429 Too Many", &[("Retry-After", "3600")], body)]);
    let error = result.unwrap_err();
    assert!(matches!(error, Error::Throttled { seconds: 3600, .. }));
    assert!(error.to_string().ends_with("asks to wait 3600 s: TOOMANYREQUESTS: pull rate limit"), "{error}");
    assert_eq!(count, 1);
}

fn server_errors_are_retried() {
    for status in ["408", "429", "500", "502", "503", "504"] {
        let (result, count) = fetch(vec![reply(status, &[], b""), reply(OK, &[], BODY)]);
        result.unwrap();
        assert_eq!(count, 2, "{status}");
    }
    let (result, count) = fetch(vec![reply("503", &[], b"")]);
    assert!(matches!(result, Err(Error::Refused { status: 503, .. })), "{result:?}");
    assert_eq!(count, 4);
    for status in ["400", "404", "405", "416", "418", "501", "201", "206"] {
        let (result, count) = fetch(vec![reply(status, &[], b"")]);
        assert!(result.is_err());
        assert_eq!(count, 1, "{status}");
    }
}

/// A server that says so when it was asked, sends `bytes`, and then nothing until the client hangs up.
fn stalling(bytes: Vec<u8>) -> (Server, mpsc::Receiver<()>) {
    let (asked, when_asked) = mpsc::channel();
    let server = Server::start(move |_: &Request, stream: &mut TcpStream| {
        send(stream, &bytes);
        let _ = asked.send(());
        let _ = std::io::copy(stream, &mut std::io::sink());
    });
    (server, when_asked)
}

fn silence_has_a_limit() {
    let quick = || Client::new(Options { read_timeout: Duration::from_millis(500), ..options() }).unwrap();
    let (server, _asked) = stalling(Vec::new());
    let result = Fetch::new().run(&quick(), &server);
    assert!(matches!(&result, Err(Error::Unreachable { reason, .. }) if reason.ends_with(" in 500ms")), "{result:?}");
    let whole = reply(OK, &[], BODY);
    let (server, _asked) = stalling(whole[..whole.len() - 3].to_vec());
    let result = Fetch::new().run(&quick(), &server);
    assert!(matches!(result, Err(Error::Cut { .. })), "{result:?}");
}

/// How often a server that drips lets a byte fall.
const DRIP_INTERVAL: Duration = Duration::from_millis(5);

/// Sends one byte after the other until the client hangs up.
fn drip(stream: &mut TcpStream) {
    while stream.write_all(b"x").is_ok() {
        std::thread::sleep(DRIP_INTERVAL);
    }
}

fn a_body_that_drips_is_silence() {
    let silence = Duration::from_millis(500);
    let client = Client::new(Options { read_timeout: silence, ..options() }).unwrap();
    let server = Server::start(|_, stream| {
        send(stream, head(OK, &[("Content-Length", "1000000")]).as_bytes());
        drip(stream);
    });
    let large = Descriptor::new("a/b", Digest::of(b"large"), 1_000_000);
    let dir = tempfile::tempdir().unwrap();
    let layout = Layout::open_or_create(dir.path()).unwrap();
    let result = client.blob(&repository(&server), &large, &layout, &Silent);
    assert!(matches!(&result, Err(Error::Cut { reason, .. }) if reason.starts_with("only ")), "{result:?}");
    // What dripped is not enough to be patient for.
    assert_eq!(server.requests().len(), 4);
}

fn a_body_that_moves_has_no_limit() {
    let silence = Duration::from_secs(1);
    let bytes: Vec<u8> = (0..50_000_u32).flat_map(u32::to_le_bytes).collect();
    let large = Descriptor::of("a/b", &bytes);
    let server = Server::start(move |_, stream| {
        send(stream, head(OK, &[("Content-Length", &bytes.len().to_string())]).as_bytes());
        for piece in bytes.chunks(bytes.len() / 20) {
            send(stream, piece);
            std::thread::sleep(silence / 8);
        }
    });
    let dir = tempfile::tempdir().unwrap();
    let layout = Layout::open_or_create(dir.path()).unwrap();
    let client = Client::new(Options { read_timeout: silence, ..options() }).unwrap();
    let start = Instant::now();
    client.blob(&repository(&server), &large, &layout, &Silent).unwrap();
    assert!(start.elapsed() > 2 * silence);
    assert_eq!(server.requests().len(), 1);
}

fn an_interrupt_ends_a_transfer() {
    let whole = reply(OK, &[], BODY);
    for sent in [0, whole.len() - 3] {
        let (server, asked) = stalling(whole[..sent].to_vec());
        let interrupt = Interrupt::default();
        let client = Client::new(Options { interrupt: interrupt.clone(), ..options() }).unwrap();
        let raiser = std::thread::spawn(move || {
            asked.recv().unwrap();
            interrupt.raise();
        });
        let result = Fetch::new().run(&client, &server);
        assert!(matches!(result, Err(Error::Interrupted)), "{result:?}");
        raiser.join().unwrap();
    }
}

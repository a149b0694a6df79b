//! Requests that survive what networks do: retries with growing pauses, `Retry-After`, one fresh token, redirects. Knows
//! HTTP and nothing of images. Authorization goes to the origin that asked for it and never along a redirect; plain http is
//! refused wherever [`Endpoints`] does not permit it, on a redirect too.

use std::error::Error as _;
use std::io;
use std::sync::OnceLock;
use std::time::Duration;

use reqwest::header::{AUTHORIZATION, HeaderName, HeaderValue, LOCATION, RETRY_AFTER, WWW_AUTHENTICATE};
use reqwest::{Response, StatusCode, Url};

use super::Options;
use super::auth::{self, Challenge, Tokens};
use super::endpoint::{self, Endpoints};
use crate::error::{Error, Result};
use crate::reference::Repository;

/// How often a request is sent before its error is reported.
const ATTEMPTS_MAX: u32 = 4;
/// The longest `Retry-After` that is obeyed. A longer one fails at once: it is a quota, not a hiccup.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);
/// How many redirects one request follows.
const REDIRECTS_MAX: u32 = 5;
/// Largest answer of a token server that is read.
const TOKEN_BYTES_MAX: u64 = 256 * 1024;
/// How much of an error's body is read.
const ANSWER_BYTES_MAX: u64 = 16 * 1024;
/// How much of it is shown.
const ANSWER_CHARS_MAX: usize = 300;
/// How often the caller's interrupt is looked at while the network is waited for.
const INTERRUPT_INTERVAL: Duration = Duration::from_millis(100);

/// Why one attempt failed.
#[derive(Debug)]
pub(super) enum Failure {
    /// It would fail again.
    Final(Error),
    /// It may succeed later: after this time, if the registry names one.
    Again { error: Error, after: Option<Duration> },
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Final(error)
    }
}

/// Two HTTP clients, made when first needed, and the tokens.
#[derive(Debug)]
pub(super) struct Transport {
    options: Options,
    /// For plain http on loopback: no proxy, and no CA certificates, which a small machine may lack.
    loopback: OnceLock<reqwest::Client>,
    /// For all else: the environment's proxies, the system's CA certificates.
    outside: OnceLock<reqwest::Client>,
    tokens: Tokens,
}

impl Transport {
    pub(super) fn new(options: Options) -> Self {
        Self { options, loopback: OnceLock::new(), outside: OnceLock::new(), tokens: Tokens::default() }
    }

    /// Runs `work` to its end or to the caller's interrupt.
    pub(super) async fn interruptible<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        let interrupted = async {
            while !self.options.interrupt.is_raised() {
                tokio::time::sleep(INTERRUPT_INTERVAL).await;
            }
        };
        tokio::select! {
            biased;
            () = interrupted => Err(Error::Interrupted),
            result = work => result,
        }
    }

    /// # Errors
    /// [`Error::Interrupted`]
    pub(super) fn check_interrupt(&self) -> Result<()> {
        self.options.interrupt.check()
    }

    /// Repeats `attempt` while it may succeed later, at most [`ATTEMPTS_MAX`] times in all.
    pub(super) async fn persist<T>(&self, attempt: impl AsyncFn() -> Result<T, Failure>) -> Result<T> {
        let (mut left, mut pause) = (ATTEMPTS_MAX, self.options.first_pause);
        loop {
            left -= 1;
            match attempt().await {
                Ok(value) => return Ok(value),
                Err(Failure::Final(error)) => return Err(error),
                Err(Failure::Again { error, .. }) if left == 0 => return Err(error),
                Err(Failure::Again { after, .. }) => tokio::time::sleep(after.unwrap_or(pause)).await,
            }
            pause *= 2;
        }
    }

    /// One GET as far as the head of its answer with status 200: through redirects, and with a token where the registry
    /// asks for one.
    pub(super) async fn get(
        &self,
        url: &Url,
        repository: &Repository,
        endpoints: &Endpoints,
        header: (HeaderName, HeaderValue),
    ) -> Result<Response, Failure> {
        let request = format!("GET {url}");
        let origin = endpoint::origin(url);
        let mut token = self.tokens.get(&origin, repository);
        let mut place = url.clone();
        let (mut redirects, mut fresh) = (0, false);
        loop {
            endpoints.check(&place)?;
            let at_home = endpoint::origin(&place) == origin;
            let mut builder = self.client(&place)?.get(place.clone()).header(header.0.clone(), header.1.clone());
            if let Some(token) = token.as_ref().filter(|_| at_home) {
                builder = builder.header(AUTHORIZATION, format!("Bearer {token}"));
            }
            let response = builder.send().await.map_err(|error| failure(&error, &request, &place))?;
            match response.status() {
                StatusCode::OK => return Ok(response),
                status if status.is_redirection() => {
                    redirects += 1;
                    place = redirected(&response, &place, &request, redirects)?;
                }
                StatusCode::UNAUTHORIZED if at_home && !fresh => {
                    let found = self.authenticate(&response, &request, &place, repository, endpoints).await?;
                    self.tokens.set(&origin, repository, found.clone());
                    (token, fresh) = (Some(found), true);
                }
                _ => return Err(refusal(response, request).await),
            }
        }
    }

    /// Gets the token that a 401 asks for.
    async fn authenticate(
        &self,
        response: &Response,
        request: &str,
        registry: &Url,
        repository: &Repository,
        endpoints: &Endpoints,
    ) -> Result<String, Failure> {
        let asks = |found: String| Error::Unauthorized {
            request: request.to_owned(),
            answer: format!("expected a challenge for an anonymous bearer token, {found}"),
        };
        let challenge = response.headers().get(WWW_AUTHENTICATE).ok_or_else(|| asks("found none".to_owned()))?;
        let challenge = Challenge::parse(&String::from_utf8_lossy(challenge.as_bytes())).map_err(asks)?;
        let protocol = |problem| Error::Protocol { request: request.to_owned(), problem };
        let url = challenge.token_url(registry, repository).map_err(protocol)?;
        endpoints.check(&url)?;
        let request = format!("GET {url}");
        let response = self.client(&url)?.get(url.clone()).send().await;
        let response = response.map_err(|error| failure(&error, &request, &url))?;
        // A redirect lands here too: a token server has no reason to send us elsewhere.
        if response.status() != StatusCode::OK {
            return Err(refusal(response, request).await);
        }
        let answer = read_whole(response, &request, TOKEN_BYTES_MAX).await?;
        auth::token(&answer).ok_or_else(|| {
            Error::Protocol { request, problem: "expected a token, found none that fits a header".to_owned() }.into()
        })
    }

    fn client(&self, url: &Url) -> Result<&reqwest::Client> {
        let plain = url.scheme() == "http" && endpoint::is_loopback(url);
        let place = if plain { &self.loopback } else { &self.outside };
        if let Some(client) = place.get() {
            return Ok(client);
        }
        // Another part of the program may have chosen a provider before us, which is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut builder = reqwest::Client::builder()
            .user_agent(&self.options.user_agent)
            .connect_timeout(self.options.connect_timeout)
            .read_timeout(self.options.read_timeout)
            .redirect(reqwest::redirect::Policy::none());
        if plain {
            builder = builder.no_proxy().tls_certs_only([]);
        }
        let client = builder
            .build()
            .map_err(|error| Error::Untrusted { endpoint: endpoint::origin(url), reason: innermost(&error) })?;
        Ok(place.get_or_init(|| client))
    }
}

/// The next piece of a body; none at its end.
pub(super) async fn chunk(response: &mut Response, request: &str) -> Result<Option<Vec<u8>>, Failure> {
    let cut = |error: reqwest::Error| Error::Cut { request: request.to_owned(), reason: innermost(&error) };
    let chunk = response.chunk().await.map_err(|error| Failure::Again { error: cut(error), after: None })?;
    Ok(chunk.map(Into::into))
}

/// A whole body, of `limit` bytes at most.
pub(super) async fn read_whole(mut response: Response, request: &str, limit: u64) -> Result<Vec<u8>, Failure> {
    let too_large = || Error::TooLarge { subject: request.to_owned(), limit };
    if response.content_length().is_some_and(|length| length > limit) {
        return Err(too_large().into());
    }
    let mut bytes = Vec::new();
    while let Some(chunk) = chunk(&mut response, request).await? {
        bytes.extend(chunk);
        if bytes.len() as u64 > limit {
            return Err(too_large().into());
        }
    }
    Ok(bytes)
}

fn redirected(response: &Response, from: &Url, request: &str, count: u32) -> Result<Url> {
    let protocol = |problem: String| Error::Protocol { request: request.to_owned(), problem };
    if count > REDIRECTS_MAX {
        return Err(protocol(format!("more than {REDIRECTS_MAX} redirects")));
    }
    let location = response.headers().get(LOCATION).and_then(|location| location.to_str().ok());
    let status = response.status();
    location
        .and_then(|location| from.join(location).ok())
        .filter(Url::has_host)
        .ok_or_else(|| protocol(format!("status {status} without a usable Location")))
}

/// What a failed request means, before any answer.
fn failure(error: &reqwest::Error, request: &str, url: &Url) -> Failure {
    let (endpoint, reason) = (endpoint::origin(url), innermost(error));
    if causes(error).any(<dyn std::error::Error>::is::<rustls::Error>) {
        Failure::Final(Error::Untrusted { endpoint, reason })
    } else if error.is_connect() || error.is_timeout() {
        let reason = if error.is_timeout() { "no answer in time".to_owned() } else { reason };
        Failure::Final(Error::Unreachable { endpoint, reason })
    } else {
        Failure::Again { error: Error::Cut { request: request.to_owned(), reason }, after: None }
    }
}

/// What an answer other than 200 means.
async fn refusal(response: Response, request: String) -> Failure {
    let status = response.status();
    let seconds = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.trim().parse::<u64>().ok());
    let answer = answer(response, &request).await;
    let refused = |request, answer| Error::Refused { request, status: status.as_u16(), answer };
    match status.as_u16() {
        401 | 403 => Failure::Final(Error::Unauthorized { request, answer }),
        404 => Failure::Final(Error::NotFound { request, answer }),
        408 | 429 | 500 | 502 | 503 | 504 => match seconds {
            Some(seconds) if seconds > RETRY_AFTER_MAX.as_secs() => {
                Failure::Final(Error::Throttled { request, seconds, answer })
            }
            _ => Failure::Again { error: refused(request, answer), after: seconds.map(Duration::from_secs) },
        },
        _ => Failure::Final(refused(request, answer)),
    }
}

/// What a registry says about an error (distribution-spec, section "Error Codes"), made fit for one line; empty if it
/// says nothing of that form.
async fn answer(response: Response, request: &str) -> String {
    // The status tells enough where the body cannot be had.
    let bytes = read_whole(response, request, ANSWER_BYTES_MAX).await.unwrap_or_default();
    let value: serde_json::Value = serde_json::from_slice(&bytes).unwrap_or_default();
    let first = &value["errors"][0];
    let words = [&first["code"], &first["message"], &value["details"], &value["message"]];
    let words: Vec<&str> =
        words.into_iter().filter_map(serde_json::Value::as_str).filter(|word| !word.is_empty()).collect();
    let line = words.join(": ");
    line.chars().map(|c| if c.is_control() { ' ' } else { c }).take(ANSWER_CHARS_MAX).collect()
}

/// An error and what lies below it. What an `io::Error` wraps is below it too, although its `source` skips that.
fn causes<'a>(error: &'a reqwest::Error) -> impl Iterator<Item = &'a (dyn std::error::Error + 'static)> {
    std::iter::successors(error.source(), |&error: &&'a (dyn std::error::Error + 'static)| {
        match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
            Some(wrapped) => Some(wrapped),
            None => error.source(),
        }
    })
}

/// The last cause in an error's own words: the ones above repeat it, or the URL.
fn innermost(error: &reqwest::Error) -> String {
    causes(error).last().map_or_else(|| error.to_string(), ToString::to_string)
}

//! Requests that survive what networks do: retries with growing pauses, `Retry-After`, one fresh token, redirects, and a
//! watch for connections on which nothing moves. Knows HTTP and nothing of images. Authorization goes to the origin that
//! asked for it and never along a redirect; plain http is refused wherever [`Endpoints`] does not permit it, on a redirect
//! too.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use reqwest::header::{AUTHORIZATION, CONTENT_LENGTH, HeaderName, HeaderValue};
use reqwest::{Method, RequestBuilder, Response, Url};
use tokio::time::Instant;

use super::Options;
use super::answer::{self, Answer, Failure};
use super::auth::Access;
use super::body::Body;
use super::clients::Clients;
use super::credentials::Credentials;
use super::endpoint::{self, Endpoints};
use super::patience::Patience;
use super::token::Authority;
use crate::error::{Error, Result};

/// How many redirects one request follows.
const REDIRECTS_MAX: u32 = 5;
/// How often the caller's interrupt is looked at while the network is waited for, and an upload's progress told.
const INTERRUPT_INTERVAL: Duration = Duration::from_millis(100);
/// How many times the silence of [`Options::read_timeout`] a registry may take to answer once it has all of an upload: it
/// hashes and stores it first.
const COMMIT_PATIENCE: u32 = 10;

/// One request.
pub(super) struct Request<'a> {
    pub(super) method: Method,
    pub(super) url: &'a Url,
    /// What it wants to do; its answer is known to come from there.
    pub(super) access: &'a Access,
    pub(super) headers: Vec<(HeaderName, HeaderValue)>,
    pub(super) body: Body<'a>,
    /// The statuses that are an answer; any other is a refusal.
    pub(super) accepted: &'a [u16],
}

impl<'a> Request<'a> {
    /// A request without headers and body, which is answered by 200.
    pub(super) fn new(method: Method, url: &'a Url, access: &'a Access) -> Self {
        Self { method, url, access, headers: Vec::new(), body: Body::Empty, accepted: &[200] }
    }

    #[must_use]
    pub(super) fn header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.push((name, value));
        self
    }
}

/// The HTTP clients, and what authorizes us.
#[derive(Debug)]
pub(super) struct Transport {
    pub(super) options: Options,
    pub(super) endpoints: Endpoints,
    pub(super) authority: Authority,
    pub(super) clients: Clients,
}

impl Transport {
    pub(super) fn new(options: Options, endpoints: Endpoints) -> Self {
        let credentials = Credentials::new(options.credentials.clone(), options.interrupt.clone());
        let authority = Authority::new(credentials, options.realms.clone());
        Self { options, endpoints, authority, clients: Clients::default() }
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

    /// Repeats `attempt` while it may succeed later and there is patience left.
    pub(super) async fn persist<T>(&self, mut attempt: impl AsyncFnMut() -> Result<T, Failure>) -> Result<T> {
        let mut patience = Patience::new(self.options.first_pause);
        loop {
            match attempt().await {
                Ok(value) => return Ok(value),
                Err(failure) => tokio::time::sleep(patience.after(failure)?).await,
            }
        }
    }

    /// Sends a request as far as the head of an answer with one of the accepted statuses: through redirects, and with
    /// authorization where the registry asks for it. Its body is made anew each time.
    pub(super) async fn send(&self, request: &Request<'_>) -> Result<Answer, Failure> {
        let home = endpoint::origin(&request.access.home);
        let mut place = request.url.clone();
        let starts_at_home = endpoint::origin(&place) == home;
        let mut shown = if starts_at_home { self.authorization(request.access).await? } else { None };
        let (mut redirects, mut renewed) = (0, false);
        loop {
            self.endpoints.check(&place)?;
            let at_home = endpoint::origin(&place) == home;
            let answer = self.send_once(request, &place, shown.as_ref().filter(|_| at_home)).await?;
            let may_renew = at_home && !renewed;
            match answer.status() {
                status if request.accepted.contains(&status) => return Ok(answer),
                status if moves(&request.method, status) => {
                    redirects += 1;
                    if redirects > REDIRECTS_MAX {
                        return Err(answer.protocol(format!("more than {REDIRECTS_MAX} redirects")).into());
                    }
                    place = answer.location()?;
                }
                401 if may_renew => {
                    shown = Some(self.reauthorization(&answer, request.access, shown.as_ref()).await?);
                    renewed = true;
                }
                // Some registries say so of a token that died.
                403 if may_renew && shown.as_ref().is_some_and(|shown| self.authority.has_expired(shown)) => {
                    shown = Some(self.reauthorization(&answer, request.access, shown.as_ref()).await?);
                    renewed = true;
                }
                _ => return Err(answer.refusal(request.accepted).await),
            }
        }
    }

    async fn send_once(
        &self,
        request: &Request<'_>,
        place: &Url,
        authorization: Option<&HeaderValue>,
    ) -> Result<Answer, Failure> {
        // Queries of uploads are long and tell a person nothing.
        let mut shown = request.url.clone();
        shown.set_query(None);
        let text = format!("{} {shown}", request.method);
        let sent = Arc::<AtomicU64>::default();
        let mut builder = self.clients.of(place, &self.options)?.request(request.method.clone(), place.clone());
        for (name, value) in &request.headers {
            builder = builder.header(name, value);
        }
        if let Some(value) = authorization {
            builder = builder.header(AUTHORIZATION, value);
        }
        if !matches!(request.method, Method::GET | Method::HEAD) {
            let body = request.body.open(&sent).map_err(Error::io(format!("read the body of {text}")))?;
            builder = builder.header(CONTENT_LENGTH, request.body.length()).body(body);
        }
        self.watch(builder, text, place, &request.body, &sent).await
    }

    /// Sends a request that has no body of a file.
    pub(super) async fn deliver(&self, builder: RequestBuilder, text: String, place: &Url) -> Result<Answer, Failure> {
        self.watch(builder, text, place, &Body::Empty, &AtomicU64::new(0)).await
    }

    /// Waits for an answer for as long as something moves. The HTTP client's own limit would run from the start, and end
    /// each upload that takes longer.
    async fn watch(
        &self,
        builder: RequestBuilder,
        text: String,
        place: &Url,
        body: &Body<'_>,
        sent: &AtomicU64,
    ) -> Result<Answer, Failure> {
        let silence = self.options.read_timeout;
        let mut sending = Box::pin(builder.send());
        let (mut moved, mut since) = (0, Instant::now());
        loop {
            let patience =
                if moved > 0 && moved == body.length() { silence.saturating_mul(COMMIT_PATIENCE) } else { silence };
            let wake = (since + patience).min(Instant::now() + INTERRUPT_INTERVAL);
            let found: Option<reqwest::Result<Response>> = tokio::select! {
                biased;
                found = &mut sending => Some(found),
                () = tokio::time::sleep_until(wake) => None,
            };
            let now_sent = sent.load(Ordering::Relaxed);
            if now_sent != moved {
                (moved, since) = (now_sent, Instant::now());
                body.report(moved);
            }
            match found {
                Some(Ok(response)) => return Ok(Answer::new(response, text, place.clone(), silence)),
                Some(Err(error)) => return Err(answer::failure(&error, &text, place)),
                None if since.elapsed() < patience => {}
                None if moved > 0 => {
                    let reason = format!("nothing moved for {patience:?} after {moved} bytes");
                    return Err(Failure::Again { error: Error::Cut { request: text, reason }, after: None });
                }
                None => {
                    let (endpoint, reason) = (endpoint::origin(place), format!("no answer to {text} in {patience:?}"));
                    return Err(Error::Unreachable { endpoint, reason }.into());
                }
            }
        }
    }
}

/// Whether a status sends this request elsewhere. What writes is repeated only where the method may not change (RFC 9110,
/// section 15.4).
fn moves(method: &Method, status: u16) -> bool {
    match status {
        301..=303 => matches!(*method, Method::GET | Method::HEAD),
        307 | 308 => true,
        _ => false,
    }
}

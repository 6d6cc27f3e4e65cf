//! [`Client`]: one connection after another, with all answers checked.

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::body::Bytes;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use larder_server_bench::{Document, DocumentAnswer, Random, StatsAnswer, Stored};
use tokio::net::TcpStream;

/// The number of keys.
const KEYS: u64 = 1 << 16;
/// The shift in keys from one burst to the next, so that other documents are then requested most.
const DRIFT: u64 = 1 << 12;
/// The average requests of a connection.
const REQUESTS: u64 = 400;
/// One request in this many stores a document.
const STORES_ONE_OF: u64 = 5;
/// The time after which a missing answer is an error.
const PATIENCE: Duration = Duration::from_secs(30);
/// The number of keys that the server remembers for each connection.
const RECENT: usize = 32;

/// The expected digest of each key's document, computed at the first answer.
pub struct Digests(Vec<OnceLock<u64>>);

impl Digests {
    pub fn new() -> Arc<Self> {
        Arc::new(Self((0..KEYS).map(|_| OnceLock::new()).collect()))
    }

    fn of(&self, key: u64) -> u64 {
        *self.0[key as usize].get_or_init(|| Document::of(key).digest())
    }
}

/// A client with one connection at a time.
pub struct Client {
    port: u16,
    digests: Arc<Digests>,
    random: Random,
    /// The first of the keys that are requested most.
    at: u64,
}

/// The expected state of one connection.
struct HttpSession {
    sender: SendRequest<Full<Bytes>>,
    served: u64,
    recent: VecDeque<u64>,
}

impl Client {
    pub fn new(port: u16, digests: Arc<Digests>, seed: u64, burst: u64) -> Self {
        let random = Random::new(seed ^ (burst << 32));
        let at = burst * DRIFT;
        Self {
            port,
            digests,
            random,
            at,
        }
    }

    /// Sends requests until `end`, at most `max`. Returns the time of each answer in microseconds.
    pub async fn run(mut self, end: Instant, max: usize) -> Result<Vec<u32>, String> {
        let mut times = Vec::new();
        while Instant::now() < end && times.len() < max {
            let mut session = open(self.port).await?;
            let requests = 1 + self.random.below(2 * REQUESTS) as usize;
            let max = max.min(times.len() + requests);
            while Instant::now() < end && times.len() < max {
                let key = self.key();
                let start = match self.random.below(STORES_ONE_OF) {
                    0 => self.store(&mut session, key).await?,
                    _ => self.fetch(&mut session, key).await?,
                };
                times.push(u32::try_from(start.as_micros()).unwrap_or(u32::MAX));
            }
        }
        Ok(times)
    }

    /// Draws a key, usually one near `at`.
    fn key(&mut self) -> u64 {
        let skewed = self.random.unit().powi(3) * KEYS as f64;
        (self.at + skewed as u64) % KEYS
    }

    async fn store(&self, session: &mut HttpSession, key: u64) -> Result<Duration, String> {
        let body = serde_json::to_vec(&Document::of(key)).map_err(said)?;
        let request = Request::post(format!("/document/{key}"));
        let request = request
            .header("host", "localhost")
            .body(Full::from(body))
            .map_err(said)?;
        let (stored, time): (Stored, _) = session.ask(request).await?;
        session.served += 1;
        check(stored.served == session.served, "the count of a store", key)?;
        check(
            stored.digest == self.digests.of(key),
            "the digest of a store",
            key,
        )?;
        Ok(time)
    }

    async fn fetch(&self, session: &mut HttpSession, key: u64) -> Result<Duration, String> {
        let (answer, time): (DocumentAnswer<Document>, _) =
            session.get(&format!("/document/{key}")).await?;
        session.served += 1;
        if session.recent.len() == RECENT {
            session.recent.pop_front();
        }
        session.recent.push_back(key);
        check(answer.served == session.served, "the count", key)?;
        check(
            session.recent == answer.recent,
            "the keys asked for last",
            key,
        )?;
        check(
            answer.document.digest() == self.digests.of(key),
            "the document",
            key,
        )?;
        Ok(time)
    }
}

impl HttpSession {
    async fn get<T: serde::de::DeserializeOwned>(
        &mut self,
        path: &str,
    ) -> Result<(T, Duration), String> {
        let request = Request::get(path).header("host", "localhost");
        self.ask(request.body(Full::default()).map_err(said)?).await
    }

    /// Returns the answer, and the time until it came.
    async fn ask<T: serde::de::DeserializeOwned>(
        &mut self,
        request: Request<Full<Bytes>>,
    ) -> Result<(T, Duration), String> {
        let start = Instant::now();
        let answer = async {
            self.sender.ready().await?;
            let answer = self.sender.send_request(request).await?;
            let status = answer.status();
            Ok::<_, hyper::Error>((status, answer.collect().await?.to_bytes()))
        };
        let answer = tokio::time::timeout(PATIENCE, answer).await;
        let (status, text) = answer.map_err(|_| "no answer".to_owned())?.map_err(said)?;
        let time = start.elapsed();
        if !status.is_success() {
            return Err(format!("the server answers {status}"));
        }
        let answer = serde_json::from_slice(&text).map_err(said)?;
        Ok((answer, time))
    }
}

/// Requests the server's counts.
pub async fn stats(port: u16) -> Result<StatsAnswer, String> {
    Ok(open(port).await?.get("/stats").await?.0)
}

async fn open(port: u16) -> Result<HttpSession, String> {
    let stream = TcpStream::connect(("127.0.0.1", port))
        .await
        .map_err(said)?;
    stream.set_nodelay(true).map_err(said)?;
    let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(said)?;
    // Ends when the sender is dropped; the request reports errors.
    tokio::spawn(connection);
    Ok(HttpSession {
        sender,
        served: 0,
        recent: VecDeque::new(),
    })
}

fn check(right: bool, what: &str, key: u64) -> Result<(), String> {
    match right {
        true => Ok(()),
        false => Err(format!("WRONG ANSWER: {what}, key {key}")),
    }
}

fn said(error: impl std::fmt::Display) -> String {
    error.to_string()
}

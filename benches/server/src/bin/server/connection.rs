//! [`Connection`]: the server's state for one client, and its answers.

use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::{Method, Request, Response, StatusCode};
use larder_server_bench::{Document, DocumentAnswer, Stored};
use serde::Serialize;

use crate::cache::Cache;

/// The number of keys remembered for each client.
const RECENT: usize = 32;

pub struct Connection {
    cache: Arc<Cache>,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    served: u64,
    recent: VecDeque<u64>,
    /// The number of requests for each title.
    titles: HashMap<String, u64>,
}

impl Seen {
    fn ask(&mut self, key: u64, document: &Document) {
        if self.recent.len() == RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back(key);
        *self.titles.entry(document.title.clone()).or_default() += 1;
    }
}

impl Connection {
    pub fn new(cache: Arc<Cache>) -> Self {
        Self {
            cache,
            seen: Mutex::default(),
        }
    }

    pub async fn answer(
        &self,
        request: Request<Incoming>,
    ) -> Result<Response<Full<Bytes>>, Infallible> {
        let (parts, body) = request.into_parts();
        let path = parts.uri.path();
        let key = path
            .strip_prefix("/document/")
            .and_then(|key| key.parse().ok());
        Ok(match (parts.method, key) {
            (Method::GET, Some(key)) => self.get(key),
            (Method::POST, Some(key)) => match body.collect().await {
                Ok(body) => self.put(key, &body.to_bytes()),
                Err(_) => status(StatusCode::BAD_REQUEST),
            },
            (Method::GET, None) if path == "/stats" => json(&self.cache.stats()),
            _ => status(StatusCode::NOT_FOUND),
        })
    }

    fn get(&self, key: u64) -> Response<Full<Bytes>> {
        let document = self.cache.get(key);
        let (served, recent) = self.note(|seen| {
            seen.ask(key, &document);
            seen.recent.iter().copied().collect()
        });
        json(&DocumentAnswer {
            served,
            recent,
            document: &*document,
        })
    }

    fn put(&self, key: u64, body: &[u8]) -> Response<Full<Bytes>> {
        let Ok(document) = serde_json::from_slice::<Document>(body) else {
            return status(StatusCode::BAD_REQUEST);
        };
        let digest = document.digest();
        self.cache.put(key, Arc::new(document));
        let (served, ()) = self.note(|_| ());
        json(&Stored { served, digest })
    }

    fn note<R>(&self, note: impl FnOnce(&mut Seen) -> R) -> (u64, R) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.served += 1;
        let noted = note(&mut seen);
        (seen.served, noted)
    }
}

fn json(answer: &impl Serialize) -> Response<Full<Bytes>> {
    match serde_json::to_vec(answer) {
        Ok(text) => Response::new(Full::new(text.into())),
        Err(_) => status(StatusCode::INTERNAL_SERVER_ERROR),
    }
}

fn status(code: StatusCode) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::default());
    *response.status_mut() = code;
    response
}

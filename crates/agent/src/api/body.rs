//! Bodies of requests, which are received into files.

use std::fs::File;
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use axum::body::Body;
use axum::http::StatusCode;
use http_body_util::BodyExt;
use hyper::body::Body as _;
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::answer::{Answer, Failure};
use super::work::Api;
use crate::feature::BodyBounds;

/// Time limit for a whole body.
const WHOLE: Duration = Duration::from_secs(120);
/// Longest time without any data.
const SILENCE: Duration = Duration::from_secs(10);
/// Bytes of a write.
const PART: usize = 1 << 20;

/// A received body; it is the only one until it is dropped.
pub(super) struct Received {
    pub(super) file: File,
    _only: OwnedSemaphorePermit,
}

/// Receives a body into a file that is removed with its last user.
pub(super) async fn receive_body(api: &Api, bounds: &BodyBounds, body: Body) -> Answer<Received> {
    let Ok(only) = Arc::clone(&api.receiving).try_acquire_owned() else {
        return Err(Failure(StatusCode::CONFLICT, bounds.busy.to_owned()));
    };
    let file = timeout(WHOLE, receive_file(api, bounds, body)).await;
    let file = file.map_err(|_| too_slow(WHOLE))??;
    Ok(Received { file, _only: only })
}

fn too_slow(limit: Duration) -> Failure {
    let text = format!("the document did not come within {} s", limit.as_secs());
    Failure(StatusCode::REQUEST_TIMEOUT, text)
}

async fn receive_file(api: &Api, bounds: &BodyBounds, mut body: Body) -> Answer<File> {
    let too_large = || Failure(StatusCode::PAYLOAD_TOO_LARGE, bounds.too_large.clone());
    let mut left = bounds.bytes;
    if body.size_hint().lower() > left {
        return Err(too_large());
    }
    let directory = api.shared.config.paths.state.clone();
    let mut file = blocking(move || {
        tempfile::tempfile_in(&directory)
            .with_context(|| format!("making a file in {}", directory.display()))
    })
    .await?;
    let mut part = Vec::new();
    loop {
        let frame = timeout(SILENCE, body.frame()).await;
        let frame = frame.map_err(|_| too_slow(SILENCE))?;
        let end = frame.is_none();
        if let Some(frame) = frame {
            let frame = frame.map_err(|error| {
                let text = format!("the document broke off: {error}");
                Failure(StatusCode::BAD_REQUEST, text)
            })?;
            let data = frame.into_data().unwrap_or_default();
            left = left.checked_sub(data.len() as u64).ok_or_else(too_large)?;
            part.extend_from_slice(&data);
        }
        if part.len() >= PART || end {
            let directory = api.shared.config.paths.state.clone();
            (file, part) = blocking(move || {
                file.write_all(&part)
                    .with_context(|| format!("keeping the document in {}", directory.display()))?;
                part.clear();
                Ok((file, part))
            })
            .await?;
        }
        if end {
            return Ok(file);
        }
    }
}

async fn blocking<T: Send + 'static>(
    action: impl FnOnce() -> anyhow::Result<T> + Send + 'static,
) -> anyhow::Result<T> {
    spawn_blocking(action).await.context("the request failed")?
}

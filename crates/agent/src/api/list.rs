//! Responses that are lists. They are made and sent a page at a time, so neither a long list nor a
//! slow client takes memory or delays others.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use thalweg_control::batch::Cursor;
use thalweg_control::system;
use thalweg_learner::HostKey;

use super::answer::{Answer, Failure, Query};
use super::best::{BestQuery, Wanted};
use super::latest;
use super::work::Api;
use crate::kernel::HostBatch;
use crate::shared::Shared;
use crate::store::{HostRow, export_head, export_host};
use crate::view::Event;

/// Events per page.
const EVENTS_PAGE: u32 = 100;
/// Hosts per page of the best hosts.
const BEST_PAGE: usize = 64;

/// Page of a list: items in JSON, and the start of the next page, if there is one.
type Page<P> = (Vec<String>, Option<P>);

/// JSON around the items of a list.
struct Form {
    head: String,
    separator: &'static str,
    tail: &'static str,
}

impl Form {
    fn array() -> Self {
        Self {
            head: "[".to_string(),
            separator: ",",
            tail: "]",
        }
    }
}

/// Sends a list, page by page from `first` on.
///
/// A fault in a later page breaks the response off, so that the client sees an incomplete response,
/// not a short list.
async fn listing<P: Send + 'static>(
    api: Api,
    form: Form,
    first: P,
    page: impl Fn(&Shared, P) -> anyhow::Result<Page<P>> + Send + Sync + 'static,
) -> Answer<Response> {
    let page = Arc::new(page);
    let turn = async move |at: P| {
        let page = Arc::clone(&page);
        api.work(move |shared| Ok(page(shared, at)?)).await
    };
    let (items, mut next) = turn(first).await?;
    let stream = async_stream::try_stream! {
        let mut is_first = items.is_empty();
        let mut text = form.head + &items.join(form.separator);
        drop(items);
        while let Some(at) = next {
            yield text;
            let (items, then) = turn(at).await.map_err(|Failure(_, why)| {
                tracing::warn!("an answer of the API broke off: {why}");
                std::io::Error::other(why)
            })?;
            next = then;
            text = String::new();
            for item in items {
                if !std::mem::take(&mut is_first) {
                    text.push_str(form.separator);
                }
                text.push_str(&item);
            }
        }
        yield text + form.tail;
    };
    // The compiler cannot infer it from the macro.
    let stream: std::pin::Pin<
        Box<dyn tokio_stream::Stream<Item = std::io::Result<String>> + Send>,
    > = Box::pin(stream);
    Ok((
        [(header::CONTENT_TYPE, "application/json")],
        Body::from_stream(stream),
    )
        .into_response())
}

/// Handler of hosts with their estimates: all, or the best by a measure.
pub(super) async fn hosts(
    State(api): State<Api>,
    Query(query): Query<BestQuery>,
) -> Answer<Response> {
    let form = Form {
        head: "{\"hosts\":[".to_string(),
        separator: ",",
        tail: "]}",
    };
    match query.wanted()? {
        Some(wanted) => best_hosts(api, form, wanted).await,
        None => {
            listing(api, form, None, |shared, at: Option<Cursor>| {
                let (batch, next) = shared.kernel.hosts_page(at.as_ref())?;
                Ok((host_items(shared, &batch)?, next.map(Some)))
            })
            .await
        }
    }
}

/// Sends the wanted hosts, best first. A host that is gone by its turn is left out.
async fn best_hosts(api: Api, form: Form, wanted: Wanted) -> Answer<Response> {
    listing(api, form, None, move |shared, at: Option<Vec<HostKey>>| {
        let mut keys = match at {
            None => wanted.keys(shared)?,
            Some(rest) => rest,
        };
        let rest = keys.split_off(keys.len().min(BEST_PAGE));
        let mut batch = Vec::with_capacity(keys.len());
        for key in keys {
            batch.extend(shared.kernel.host(&key)?.map(|host| (key, host)));
        }
        let next = (!rest.is_empty()).then_some(Some(rest));
        Ok((host_items(shared, &batch)?, next))
    })
    .await
}

fn host_items(shared: &Shared, batch: &HostBatch) -> anyhow::Result<Vec<String>> {
    let table = shared.kernel.arms()?;
    let presenter = shared.presenter(&table);
    let items = batch
        .iter()
        .map(|(key, host)| serde_json::to_string(&presenter.host(key, host)));
    Ok(items.collect::<Result<_, _>>()?)
}

/// Handler of the document of all host records.
pub(super) async fn export(State(api): State<Api>) -> Answer<Response> {
    let header = api.shared.snapshot_header(api.shared.mode());
    let form = Form {
        head: export_head(&header).map_err(anyhow::Error::from)? + "\n",
        separator: ",\n",
        tail: "\n]}\n",
    };
    let began_ns = system::monotonic_ns();
    listing(api, form, None, move |shared, at: Option<Cursor>| {
        let (batch, next) = shared.kernel.hosts_page(at.as_ref())?;
        let arms = shared.kernel.arms()?;
        let items = batch
            .iter()
            .map(|(key, host)| export_host(&HostRow::new(*key, host, began_ns, |i| arms.name(i))))
            .collect::<Result<_, _>>()?;
        Ok((items, next.map(Some)))
    })
    .await
}

/// Handler of at most `limit` stored events after the number `since`, oldest first.
pub(super) async fn events(
    api: Api,
    since: i64,
    limit: u32,
    host: Option<String>,
) -> Answer<Response> {
    let first = (since, limit);
    listing(api, Form::array(), first, move |shared, (from, left)| {
        let count = left.min(EVENTS_PAGE);
        let events = shared.store(|store| store.events(from, count, host.as_deref()))?;
        let is_last = (events.len() as u32) < count || left == count;
        let next = events.last().filter(|_| !is_last);
        let next = next.map(|event| (event.id, left - count));
        Ok((texts(&events)?, next))
    })
    .await
}

/// Sends the latest `limit` events, newest first, with recent ones that the store does not keep.
pub(super) async fn latest(api: Api, limit: u32, host: Option<String>) -> Answer<Response> {
    let wanted = host.clone();
    let left_out = api.work(move |shared| Ok(latest::left_out(shared, wanted.as_deref())?));
    let left_out = left_out.await?;
    // Number before which stored events follow, count of unstored events that were sent, and count
    // of events that are left.
    let first = (i64::MAX, 0, limit);
    listing(
        api,
        Form::array(),
        first,
        move |shared, (before, taken, left)| {
            let count = left.min(EVENTS_PAGE);
            let host = host.as_deref();
            let stored = shared.store(|store| store.events_before(before, count, host))?;
            let (events, more) = latest::merged(&left_out[taken..], stored, count as usize);
            let last = events.iter().rfind(|event| event.stands_for > 0.0);
            let before = last.map_or(before, |event| event.id);
            let is_last = (events.len() as u32) < count || left == count;
            let next = (!is_last).then_some((before, taken + more, left - count));
            Ok((texts(&events)?, next))
        },
    )
    .await
}

fn texts(events: &[Event]) -> anyhow::Result<Vec<String>> {
    let items = events.iter().map(serde_json::to_string);
    Ok(items.collect::<Result<_, _>>()?)
}

//! Responses that are lists. They are made and sent a page at a time, so neither a long list nor a
//! slow client takes memory or delays others.

use axum::body::Body;
use axum::http::header;
use axum::response::{IntoResponse, Response};

use super::answer::{Answer, Failure};
use super::latest;
use super::work::Api;
use crate::feature::{Listing, PageMaker};
use crate::view::Event;

/// Events per page.
const EVENTS_PAGE: u32 = 100;

/// Sends a list, page by page.
///
/// A fault in a later page breaks the response off, so that the client sees an incomplete response,
/// not a short list.
pub(super) async fn send_pages(api: Api, listing: Listing) -> Answer<Response> {
    let turn = async move |mut pages: PageMaker| {
        api.work(move |shared| {
            let (items, more) = pages(&shared.feature_context())?;
            Ok((items, more.then_some(pages)))
        })
        .await
    };
    let (items, mut next) = turn(listing.pages).await?;
    let stream = async_stream::try_stream! {
        let mut is_first = items.is_empty();
        let mut text = listing.head + &items.join(listing.separator);
        drop(items);
        while let Some(pages) = next {
            yield text;
            let (items, then) = turn(pages).await.map_err(|Failure(_, why)| {
                tracing::warn!("an answer of the API broke off: {why}");
                std::io::Error::other(why)
            })?;
            next = then;
            text = String::new();
            for item in items {
                if !std::mem::take(&mut is_first) {
                    text.push_str(listing.separator);
                }
                text.push_str(&item);
            }
        }
        yield text + listing.tail;
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

fn json_array(pages: PageMaker) -> Listing {
    Listing {
        head: "[".to_owned(),
        separator: ",",
        tail: "]",
        pages,
    }
}

/// Handler of at most `limit` stored events after the number `since`, oldest first.
pub(super) async fn events(
    api: Api,
    since: i64,
    limit: u32,
    host: Option<String>,
) -> Answer<Response> {
    let (mut from, mut left) = (since, limit);
    let pages: PageMaker = Box::new(move |context| {
        let count = left.min(EVENTS_PAGE);
        let events = context.store(|store| store.events(from, count, host.as_deref()))?;
        let is_last = (events.len() as u32) < count || left == count;
        left -= count;
        from = events.last().map_or(from, |event| event.id);
        Ok((texts(&events)?, !is_last))
    });
    send_pages(api, json_array(pages)).await
}

/// Sends the latest `limit` events, newest first, with recent ones that the store does not keep.
pub(super) async fn latest(api: Api, limit: u32, host: Option<String>) -> Answer<Response> {
    let wanted = host.clone();
    let left_out = api.work(move |shared| {
        let context = shared.feature_context();
        Ok(latest::left_out(&context, wanted.as_deref())?)
    });
    let left_out = left_out.await?;
    // Number before which stored events follow, count of unstored events that were sent, and count
    // of events that are left.
    let (mut before, mut taken, mut left) = (i64::MAX, 0, limit);
    let pages: PageMaker = Box::new(move |context| {
        let count = left.min(EVENTS_PAGE);
        let stored = context.store(|store| store.events_before(before, count, host.as_deref()))?;
        let (events, more) = latest::merged(&left_out[taken..], stored, count as usize);
        let last = events.iter().rfind(|event| event.stands_for > 0.0);
        let is_last = (events.len() as u32) < count || left == count;
        before = last.map_or(before, |event| event.id);
        taken += more;
        left -= count;
        Ok((texts(&events)?, !is_last))
    });
    send_pages(api, json_array(pages)).await
}

fn texts(events: &[Event]) -> anyhow::Result<Vec<String>> {
    let items = events.iter().map(serde_json::to_string);
    Ok(items.collect::<Result<_, _>>()?)
}

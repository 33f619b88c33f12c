//! The report's page in a headless Chromium: it opens from disk, requests nothing, logs no errors, and everything on it can be
//! clicked. The pages are left in `report_page/` in Cargo's folder for tests.
//! Without Chromium the tests that need it print that they were skipped.

#[path = "support/browser.rs"]
mod browser;
#[path = "support/sample_report.rs"]
mod sample_report;

use crate::pictures::made_from::taken_apart;
use browser::Browser;
use plimsoll::study::report::Report;
use sample_report::{LARGE, SMALL, Sample, UNTUNED, report};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Names that would do harm if interpreted as markup; each sets `window.broken`.
const HOSTILE: [&str; 4] = [
    "</script><script>window.broken = 1</script>",
    "<img src=x onerror=\"window.broken = 2\">",
    "\"><svg onload=window.broken=3>",
    "<!-- <script> &lt;b&gt; {{report}}",
];

/// Writes the page of a report.
fn written(name: &str, page: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("report_page");
    fs::create_dir_all(&folder).expect("a folder for pages");
    let path = folder.join(format!("{name}.html"));
    fs::write(&path, page).expect("a file");
    path
}

/// Starts a browser; prints a message if there is none.
fn browser() -> Option<Browser> {
    let browser = Browser::start();
    if browser.is_none() {
        eprintln!("skipped: there is no Chromium to look at the report's page with");
    }
    browser
}

/// Checks that only the file itself was requested, and that there were no errors.
#[track_caller]
fn quiet(browser: &mut Browser) {
    let (asked, wrong) = browser.heard();
    let leaves =
        |url: &&String| !["file:", "data:", "blob:", "about:"].iter().any(|own| url.starts_with(own));
    assert_eq!(asked.iter().find(leaves), None, "a request leaves the page");
    let own = asked.iter().filter(|url| url.starts_with("file:")).collect::<BTreeSet<_>>();
    assert!(own.iter().all(|url| url.ends_with(".html")), "the page asks for other files: {own:?}");
    assert_eq!(wrong, Vec::<String>::new(), "the console has errors or warnings");
}

/// Returns the report that a page contains.
fn data_of(page: &str) -> Report {
    let (report, _) = taken_apart(page).expect("the report's place");
    serde_json::from_value(report).expect("a report")
}

/// Returns a report in which all names and words are hostile.
fn hostile() -> Report {
    fn spoil(value: &mut Value, count: &mut usize) {
        match value {
            Value::String(text) => {
                *text = format!("{count} {}", HOSTILE[*count % HOSTILE.len()]);
                *count += 1;
            }
            Value::Array(all) => all.iter_mut().for_each(|value| spoil(value, count)),
            Value::Object(fields) => fields.values_mut().for_each(|value| spoil(value, count)),
            _ => {}
        }
    }
    let mut report = serde_json::to_value(report(&Sample { layers: 8, ..SMALL })).expect("plain JSON");
    spoil(&mut report, &mut 0);
    report["kind"] = "report/1".into();
    serde_json::from_value(report).expect("a report")
}

#[test]
fn a_page_of_resnet152s_size_is_small_and_made_at_once() {
    let large = report(&LARGE);
    let moved = large.iteration.timelines[0].slices.bytes.iter().filter(|bytes| **bytes > 0).count();
    let commands = large.iteration.timelines[0].slices.start.len();
    assert!(commands - moved >= 1_600 && moved >= 340 && large.layers.len() >= 520, "{commands} {moved}");
    let begun = Instant::now();
    let page = large.html();
    let took = begun.elapsed();
    assert!(page.len() < 2_000_000, "{} bytes", page.len());
    assert!(took < Duration::from_secs(20), "{took:?}");
    assert_eq!(data_of(&page), large, "the page holds the report as it is");
}

#[test]
fn names_end_no_element_of_the_page() {
    let plain = report(&SMALL).html();
    let report = hostile();
    let page = report.html();
    assert_eq!(page.matches("</script").count(), plain.matches("</script").count());
    assert_eq!(page.matches("<img").count(), plain.matches("<img").count());
    assert_eq!(data_of(&page), report);
}

#[test]
fn a_page_has_its_sections_and_asks_for_nothing() {
    let Some(mut browser) = browser() else { return };
    browser.look(1400, 900, false);
    browser.open(&written("opened", &report(&SMALL).html()));
    sections(&mut browser, &SMALL);
    quiet(&mut browser);
}

#[test]
#[ignore = "minutes: CI runs it"]
fn names_are_shown_as_texts() {
    let Some(mut browser) = browser() else { return };
    let report = hostile();
    browser.look(1400, 900, false);
    browser.open(&written("hostile", &report.html()));
    for figure in figures(&mut browser) {
        tooltip(&mut browser, &figure);
    }
    open_all(&mut browser);
    assert_eq!(browser.eval("window.broken ?? null"), Value::Null, "a name was taken for markup");
    assert_eq!(browser.eval("document.querySelectorAll('main img, main script').length"), json!(0));
    let shown = browser.eval("document.querySelector('main').textContent");
    for word in HOSTILE {
        assert!(shown.as_str().expect("a text").contains(word), "{word} is not shown");
    }
    quiet(&mut browser);
}

#[test]
#[ignore = "minutes: CI runs it"]
fn everything_on_the_page_can_be_clicked() {
    let Some(mut browser) = browser() else { return };
    for (name, sample) in [("small", SMALL), ("large", LARGE), ("untuned", UNTUNED)] {
        let report = report(&sample);
        let path = written(name, &report.html());
        browser.look(1400, 900, false);
        browser.open(&path);
        sections(&mut browser, &sample);
        // All figures of the small report; those that differ with many ops, of the large one; the rest, of the untuned one.
        for figure in figures(&mut browser) {
            if name == "small" {
                legend(&mut browser, &figure);
            }
            let over_time = ["#timeline", "#bytes", "#addresses"].contains(&figure.as_str());
            if over_time && name != "untuned" {
                zoom(&mut browser, &figure);
            }
            if name == "small" || name == "large" && over_time {
                tooltip(&mut browser, &figure);
            }
        }
        if name == "small" {
            open_all(&mut browser);
            wait_is_shown(&mut browser);
            sort_all(&mut browser);
            copy(&mut browser);
        }
        layers(&mut browser, report.layers.len());
        dark(&mut browser, "#timeline");
        quiet(&mut browser);
    }
}

#[test]
#[ignore = "minutes: CI runs it"]
fn a_page_fits_its_width_and_follows_the_theme() {
    let Some(mut browser) = browser() else { return };
    let themed = |browser: &mut Browser, theme: &str| {
        assert_eq!(browser.eval("document.documentElement.dataset.theme"), json!(theme));
    };
    for (name, sample) in [("small", SMALL), ("large", LARGE)] {
        let path = written(name, &report(&sample).html());
        for (width, dark) in [(1400, false), (1400, true), (400, false), (400, true)] {
            browser.look(width, 900, dark);
            browser.open(&path);
            themed(&mut browser, if dark { "dark" } else { "light" });
            let most = number(&mut browser, "document.documentElement.scrollWidth");
            assert!(most <= width, "{name} is {most} pixels wide in a window of {width}");
        }
        browser.print();
        themed(&mut browser, "dark");
    }
    quiet(&mut browser);
}

/// Checks that the page has the parts of the report, in order, and no others.
fn sections(browser: &mut Browser, sample: &Sample) {
    let found = browser.eval("[...document.querySelectorAll('main > section')].map(s => s.id)");
    let all = ["answer", "batches", "workers", "iteration", "memory", "layers", "fit", "policies", "origin"];
    let there = |id: &&str| {
        let is_of_tuning = ["batches", "fit"].contains(id);
        (sample.tuned || !is_of_tuning) && (sample.workers || *id != "workers")
    };
    assert_eq!(found, json!(all.iter().filter(|id| there(id)).collect::<Vec<_>>()));
    assert_eq!(browser.eval("document.querySelectorAll('h1').length"), json!(1));
    let figures = if sample.tuned { 9 } else { 4 } + usize::from(sample.workers);
    assert_eq!(browser.eval("document.querySelectorAll('figure').length"), json!(figures));
    let undrawn = "[...document.querySelectorAll('figure')].filter(f => !f.querySelector('.plot canvas, .plot svg \
                   path')).length";
    assert_eq!(browser.eval(undrawn), json!(0), "every plot is drawn");
    let named = "[...document.querySelectorAll('figure .plot')].every(p => p.getAttribute('aria-label'))";
    assert_eq!(browser.eval(named), json!(true), "every plot says what it shows");
}

fn figures(browser: &mut Browser) -> Vec<String> {
    let ids = browser.eval("[...document.querySelectorAll('figure')].map(f => '#' + f.id)");
    ids.as_array().expect("a list").iter().map(|id| id.as_str().expect("an id").to_owned()).collect()
}

/// Returns a value that changes when a plot is drawn differently.
fn drawing(browser: &mut Browser, figure: &str) -> String {
    browser.frame();
    let look = format!(
        "(c => c ? c.toDataURL() : document.querySelector('{figure} .plot \
         svg').innerHTML)(document.querySelector('{figure} canvas'))"
    );
    browser.eval(&look).as_str().expect("a drawing").to_owned()
}

fn number(browser: &mut Browser, script: &str) -> u64 {
    browser.eval(script).as_u64().expect("a number")
}

/// Numbers the elements in `data-at`, and returns how many there are.
fn numbered(browser: &mut Browser, elements: &str) -> u64 {
    let script = format!(
        "(all => {{ all.forEach((e, at) => e.dataset.at = at); return all.length; }})(document.querySelectorAll('{elements}'))"
    );
    number(browser, &script)
}

fn legend(browser: &mut Browser, figure: &str) {
    let many = number(browser, &format!("document.querySelectorAll('{figure} .legend li').length"));
    for at in 1..=many {
        let button = format!("{figure} .legend li:nth-child({at}) button");
        let pressed = format!("document.querySelector('{button}').getAttribute('aria-pressed')");
        // A hidden entry may be too small to be seen; the first entry never is.
        let before = (at == 1).then(|| drawing(browser, figure));
        browser.click(&button);
        assert_eq!(browser.eval(&pressed), json!("false"));
        assert!(before.is_none_or(|before| before != drawing(browser, figure)), "{button} hides nothing");
        browser.click(&button);
        assert_eq!(browser.eval(&pressed), json!("true"));
    }
}

fn zoom(browser: &mut Browser, figure: &str) {
    // In, earlier, later, in, out, all.
    for at in [1, 3, 4, 1, 2, 5] {
        let before = drawing(browser, figure);
        browser.click(&format!("{figure} .zoom button:nth-child({at})"));
        assert!(drawing(browser, figure) != before, "{figure}: zoom button {at} changes nothing");
    }
    // The middle may lie between two frames, where zooming has no effect. The linked axis is checked in a plot without the
    // mouse.
    let (x, y) = browser.middle(&format!("{figure} .plot"));
    let other = if figure == "#bytes" { "#addresses" } else { "#bytes" };
    let whole = drawing(browser, other);
    browser.hover(x, y - 90.0);
    browser.zoom(x, y - 90.0, -240.0);
    let end = Instant::now() + Duration::from_secs(120);
    while drawing(browser, other) == whole {
        assert!(Instant::now() < end, "{figure}: Ctrl and the wheel do not zoom");
    }
    let zoomed = drawing(browser, figure);
    browser.click(&format!("{figure} .zoom button:nth-child(5)"));
    assert!(drawing(browser, figure) != zoomed, "{figure}: all of it is shown again");
    assert!(other != "#bytes" || drawing(browser, other) == whole, "{figure}: {other} is as it was");
}

/// Moves over a plot until it shows a tooltip.
fn tooltip(browser: &mut Browser, figure: &str) {
    let plot = format!("{figure} .plot");
    let (x, y) = browser.middle(&plot);
    let size = browser.eval(&format!(
        "(() => {{ const p = document.querySelector('{plot}'); return [p.clientWidth, p.clientHeight]; }})()"
    ));
    let (width, height) = (size[0].as_f64().expect("a width"), size[1].as_f64().expect("a height"));
    let said = format!(
        "(() => {{ const t = document.querySelector('{figure} .tip'); \
         return t && getComputedStyle(t).visibility !== 'hidden' && t.style.opacity !== '0' ? t.textContent : ''; }})()"
    );
    // From the middle row outwards, in steps of a point's width; the page is queried now and then.
    for row in 0..40 {
        let down = f64::from(if row % 2 == 0 { row } else { -row }) / 84.0 * (height - 40.0);
        for column in 0..80 {
            browser.hover(x + (f64::from(column) / 79.0 - 0.5) * (width - 40.0), y + down);
            if column % 5 == 4 && browser.eval(&said) != json!("") {
                return;
            }
        }
    }
    panic!("{figure}: nowhere does a tooltip come up");
}

fn open_all(browser: &mut Browser) {
    let many = numbered(browser, "main details");
    for at in 0..many {
        browser.click(&format!("details[data-at='{at}'] > summary"));
        browser.eval("new Promise(done => setTimeout(done, 0))");
        let rows = format!("document.querySelectorAll(\"details[data-at='{at}'] tbody tr\").length");
        assert!(number(browser, &rows) > 0, "details {at} has no rows");
    }
}

/// Checks that a click on a wait in the list zooms to it, and memory with it.
fn wait_is_shown(browser: &mut Browser) {
    let whole = drawing(browser, "#bytes");
    browser.click("#timeline .stalls tbody tr:first-child td:last-child button");
    assert!(drawing(browser, "#bytes") != whole, "the wait is not zoomed to");
    browser.click("#timeline .zoom button:nth-child(5)");
    assert!(drawing(browser, "#bytes") == whole, "all is shown again");
}

/// Checks that every head of every table sorts, in both directions.
fn sort_all(browser: &mut Browser) {
    let many = numbered(browser, "main thead th button");
    assert!(many > 20, "{many} columns");
    for at in 0..many {
        let head = format!("thead button[data-at='{at}']");
        let sorted = format!("document.querySelector(\"{head}\").parentElement.getAttribute('aria-sort')");
        let mut ways = BTreeSet::new();
        for _ in 0..2 {
            browser.click(&head);
            ways.insert(browser.eval(&sorted).as_str().unwrap_or("not at all").to_owned());
        }
        assert_eq!(ways, BTreeSet::from(["ascending".to_owned(), "descending".to_owned()]), "column {at}");
    }
}

fn copy(browser: &mut Browser) {
    // The button says so for two seconds.
    let seen = "(button => new MutationObserver(() => (window.copied ??= button.textContent)).observe(button, \
                { childList: true }))(document.querySelector('#layers .copy'))";
    browser.eval(seen);
    browser.click("#layers .copy");
    let said = "new Promise(done => { const look = () => (window.copied ? done(window.copied) : setTimeout(look, 20)); \
                look(); })";
    assert_eq!(browser.eval(said), json!("Copied"));
}

/// Checks the table of layers: sorted by a number, filtered by text and by decision.
fn layers(browser: &mut Browser, many: usize) {
    let column = "[...document.querySelectorAll('#layers tbody tr')].map(r => \
                  Number(r.children[4].textContent.replaceAll(',', '').replace('< ', '')))";
    browser.click("#layers thead th:nth-child(5) button");
    if browser.eval("document.querySelector('#layers thead th:nth-child(5)').getAttribute('aria-sort')")
        == "ascending"
    {
        browser.click("#layers thead th:nth-child(5) button");
    }
    let sorted = browser.eval(column);
    let sorted: Vec<f64> = sorted.as_array().expect("a list").iter().filter_map(Value::as_f64).collect();
    assert_eq!(sorted.len(), many);
    assert!(sorted.is_sorted_by(|a, b| a >= b), "{sorted:?}");
    browser.click("#layers input[type=search]");
    browser.type_text("CONV");
    let names = browser.eval("[...document.querySelectorAll('#layers tbody tr')].map(r => r.textContent)");
    let names = names.as_array().expect("a list");
    assert!(!names.is_empty() && names.len() < many, "{} of {many}", names.len());
    assert!(names.iter().all(|name| name.as_str().is_some_and(|name| name.contains("conv"))));
    browser.click("#layers .chip:nth-child(2)");
    let chip = browser.eval("document.querySelector('#layers .chip:nth-child(2)').firstChild.textContent");
    let decisions = browser
        .eval("[...document.querySelectorAll('#layers tbody tr')].map(r => r.children[2].textContent)");
    let decisions = decisions.as_array().expect("a list");
    assert!(
        !decisions.is_empty() && decisions.iter().all(|decision| *decision == chip),
        "{decisions:?}, {chip}"
    );
}

fn dark(browser: &mut Browser, figure: &str) {
    let ground = "getComputedStyle(document.body).backgroundColor";
    let light = browser.eval(ground);
    let drawn = drawing(browser, figure);
    browser.click("#theme");
    assert_ne!(browser.eval(ground), light, "the page is dark");
    assert_ne!(drawing(browser, figure), drawn, "the plots are dark");
    browser.click("#theme");
    assert_eq!(browser.eval(ground), light, "the page is light again");
}

"""The museum in a real browser: take a bug from the shelf, walk through the lessons, guess, and read the answer."""

from browser import watched_page

DESKTOP, PHONE = {"width": 1440, "height": 1000}, {"width": 390, "height": 844}
PATIENCE = 90_000


def open_exhibit(page, address, slug, more=""):
    page.goto(f"{address}museum?exhibit={slug}{more}")
    page.wait_for_selector("article[aria-busy=false] form.guess", timeout=PATIENCE)


def guess(page, check):
    page.check(f'input[name=museum-guess][value="{check}"]')
    page.click('[data-focus="say"]')
    page.wait_for_function("c => location.search.includes(`guess=${c}`)", arg=check, timeout=PATIENCE)


def test_a_bug_is_taken_walked_through_guessed_and_explained(address, browser):
    with watched_page(browser, viewport=DESKTOP) as page:
        page.goto(f"{address}museum")
        page.wait_for_selector(".exhibit-card", timeout=PATIENCE)
        assert page.locator(".exhibit-card").count() >= 15
        page.click('[data-exhibit="one-fewer"]')
        page.wait_for_selector("article[aria-busy=false] form.guess", timeout=PATIENCE)
        page.click('[data-focus="walk-masks"]')
        page.wait_for_selector('#lessons-side [data-check="first_token_scored"][data-status="error"]', timeout=PATIENCE)
        page.click('nav.pages a[href*="museum"]')
        page.wait_for_selector('[data-open="one-fewer"] form.guess', timeout=PATIENCE)
        guess(page, "eos_in_mask")
        page.wait_for_function("() => document.querySelector('.said.bad')?.textContent", timeout=PATIENCE)
        assert not page.locator(".panel.answer").count()
        guess(page, "first_token_scored")
        page.wait_for_selector('.panel.answer[data-answer="first_token_scored"]', timeout=PATIENCE)
        assert "OpenRLHF#973" in page.locator(".reports").inner_text()
        assert page.locator('.numbers [data-number="num_items"] .found').inner_text() == "52"
        assert page.locator(".progress").get_attribute("data-done") == "1"
        page.go_back()
        page.wait_for_function("() => !document.querySelector('.panel.answer')", timeout=PATIENCE)


def test_a_link_opens_the_answer_and_what_cannot_be_carried_is_said(address, browser):
    with watched_page(browser, viewport=PHONE) as page:
        open_exhibit(page, address, "never-clips", "&told=1&__theme=dark")
        assert page.locator(".panel.answer").get_attribute("data-answer") == "ratio_identically_one"
        assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")
        page.goto(f"{address}museum?exhibit=cooler")
        page.wait_for_selector(".panel.lacking", timeout=PATIENCE)
        page.click('[data-focus="carry"]')
        page.wait_for_selector("form.guess", timeout=PATIENCE)
        assert "temperature=0.6" in page.url


def test_it_works_with_keys_alone(address, browser):
    with watched_page(browser, viewport=DESKTOP) as page:
        open_exhibit(page, address, "never-clips")
        page.focus('input[name=museum-guess][value="none"]')
        page.keyboard.press("Space")
        page.focus('[data-focus="say"]')
        page.keyboard.press("Enter")
        page.wait_for_selector(".panel.answer .finding.info", timeout=PATIENCE)
        assert page.locator(".said.good").count() == 1

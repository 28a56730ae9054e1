"""Logging in to the console with a token, a one-time code or the OpenID provider, and logging out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from taskgate import clock
from taskgate.access.authorize import AccessRefused, Authorizer
from taskgate.access.proof import CodeProof, HttpProof, ProviderProof
from taskgate.core.governance.approver import Approver
from taskgate.core.identity.access import Access, AccessRefusal
from taskgate.core.identity.identity import Identity
from taskgate.core.return_path import safe_return
from taskgate.dashboard.frame import Frame
from taskgate.dashboard.login import LOGIN_COOKIE, Login, LoginFacts
from taskgate.dashboard.passphrase import Passphrase
from taskgate.dashboard.routes import Route, Visit, form_route, page_route
from taskgate.dashboard.web import Answer, WebRequest, redirect
from taskgate.ports.caller_credentials import IssuerUnavailable, LoginRefused, PeopleLogin
from taskgate.telemetry.logs import log

START: Final = "/overview"
LOGIN_BEGIN: Final = "/login/oidc"
LOGIN_CALLBACK: Final = "/login/callback"
_PROVIDER_UNAVAILABLE: Final = (
    "Login failed: the identity provider is unavailable or refused the request. The gateway's log has details."
)
_USED_CODE: Final = "This link has expired or was already used. Create a new one with: taskgate approvals login"
Provider = Callable[[], PeopleLogin | None]
"""The OpenID provider of the configuration in force."""


class LoginPages(msgspec.Struct, eq=False, kw_only=True):
    login: Login
    authorizer: Authorizer
    passphrase: Passphrase
    provider: Provider
    frame: Callable[[], Frame]
    base_url: Callable[[], str]
    note_person: Callable[[Identity], None]

    def routes(self) -> tuple[Route, ...]:
        public = Access.PUBLIC
        return (
            page_route("/login", public, self._log_in, "The login page."),
            form_route("/login", public, self._log_in, "Log in with a token or a one-time code."),
            page_route(LOGIN_BEGIN, public, self._with_provider, "Start a login with the OpenID provider."),
            page_route(LOGIN_CALLBACK, public, self._with_provider, "Redirect target of the OpenID provider."),
            form_route("/logout", Access.LOGIN, self._log_out, "Log out of this session, or of all sessions."),
        )

    def page(self, request: WebRequest, code: str = "", note: str | None = None, status: int = 200) -> Answer:
        """The login page, which returns to the address in `next`."""
        return_to = request.form().get("next") if request.method == "POST" else request.query.get("next")
        return self.frame().plain(
            "login.html",
            request,
            None,
            status=status,
            note=note,
            note_kind="bad",
            title="Log in",
            code=code,
            back=safe_return(return_to) or "",
            passphrase=self.passphrase.is_set,
            provider=self.provider() is not None,
            fresh=request.query.get("fresh") == "1",
        )

    async def _log_out(self, visit: Visit) -> Answer:
        request = visit.request
        everywhere = request.form().get("everywhere") == "1"
        ended = await self.login.end(request.cookie(self.login.cookie_name), everywhere=everywhere)
        return redirect("/login", (b"set-cookie", ended))

    async def _with_provider(self, visit: Visit) -> Answer:
        request, provider = visit.request, self.provider()
        if provider is None:
            return self.page(request, status=404)
        status = 403
        try:
            return await (self._to_provider if request.path == LOGIN_BEGIN else self._from_provider)(request, provider)
        except LoginRefused as refused:
            note = f"Login failed: {refused}. Try again."
        except IssuerUnavailable as fault:
            log.warning("login with the provider failed", why=str(fault))
            note = _PROVIDER_UNAVAILABLE
        except AccessRefused as refused:
            log.warning("login with the provider refused", why=refused.why or refused.reason.value)
            note = f"Login failed: {refused.why}. Try again." if refused.why else refused.text
            if refused.reason is AccessRefusal.UNVERIFIABLE:
                note = _PROVIDER_UNAVAILABLE
            elif refused.reason is AccessRefusal.TOO_MANY_ATTEMPTS:
                status = refused.status
        return self.page(request, note=note, status=status)

    async def _to_provider(self, request: WebRequest, provider: PeopleLogin) -> Answer:
        back, fresh = safe_return(request.query.get("next")) or START, request.query.get("fresh") == "1"
        address, pending = await provider.begin(self._callback_url(), back, fresh=fresh)
        return redirect(address, (b"set-cookie", self.login.pending_cookie(pending)))

    async def _from_provider(self, request: WebRequest, provider: PeopleLogin) -> Answer:
        """The browser comes from another site and would not send a Strict cookie on a redirect, so a page of ours redirects it."""
        pending = self.login.pending(request.cookie(LOGIN_COOKIE))
        if pending is None:
            raise LoginRefused("the login expired or was started in another browser")
        answer, address = request.query, self._callback_url()
        proof = ProviderProof(lambda: provider.finish(pending, answer, address), request.proof)
        credential = (await self.authorizer.authorize(proof, Access.LOGIN)).credential
        identity = credential.identity
        self.note_person(identity)
        user = Approver(identity.principal, identity.roles, identity.may_call)
        log.info("logged in", user=user.id, by="provider")
        facts = self.login.facts_of(credential, self.authorizer.credentials)
        cookies = (await self.login.begin(user, identity.authenticated_at, facts), self.login.no_pending_cookie())
        page = self.frame().message(request, None, 200, "Logged in", "Redirecting to the console.")
        refresh = (b"refresh", f"0; url={pending.back}".encode("ascii", "ignore"))
        return msgspec.structs.replace(
            page, headers=(*page.headers, refresh, *((b"set-cookie", cookie) for cookie in cookies))
        )

    def _callback_url(self) -> str:
        return f"{self.base_url()}{LOGIN_CALLBACK}"

    async def _log_in(self, visit: Visit) -> Answer:
        """A GET only shows the form, so that programs that open links cannot use up a code."""
        request = visit.request
        if request.method != "POST":
            return self.page(request, request.query.get("code", ""))
        form = request.form()
        try:
            user, facts = await self._authenticated(request, form)
        except AccessRefused as refused:
            log.warning("login refused", why=refused.reason.value)
            status = refused.status if refused.status in (429, 503) else 403
            by_code = form.get("code") and refused.reason is AccessRefusal.UNKNOWN_CREDENTIAL
            return self.page(request, note=_USED_CODE if by_code else refused.text, status=status)
        if self.passphrase.needed_by(user) and not await self.passphrase.fits(form.get("passphrase", "")):
            log.warning("login refused", user=user.id)
            return self.page(request, note="Wrong passphrase.", status=403)
        log.info("logged in", user=user.id)
        back = safe_return(form.get("next")) or START
        return redirect(back, (b"set-cookie", await self.login.begin(user, int(clock.wall()), facts)))

    async def _authenticated(self, request: WebRequest, form: Mapping[str, str]) -> tuple[Approver, LoginFacts]:
        """The person who logs in with a one-time code or a token. Raises AccessRefused."""
        proof = request.proof
        if form.get("code"):
            authorized = await self.authorizer.authorize(CodeProof(form["code"], self.login, proof), Access.LOGIN)
        else:
            token = b"Bearer " + form.get("token", "").strip().encode()
            authorized = await self.authorizer.authorize(
                HttpProof(proof.arrival, token, proof.every_header), Access.LOGIN
            )
        person = authorized.person
        assert person is not None
        return person, self.login.facts_of(authorized.credential, self.authorizer.credentials)

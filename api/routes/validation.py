"""What a spec would need and cost, without running it."""

from fastapi import APIRouter, Request, Response

from api.auth import needs
from api.bodies import RawBody, parse_spec
from api.context import ContextDependency
from api.openapi import problems
from api.responses import answer
from api.routes.submissions import SPEC_BODY
from services.validation import validate
from services.views import ValidationView

router = APIRouter(tags=["experiments"])


@router.post(
    "/v1/experiments:validate",
    response_model=ValidationView,
    openapi_extra={**needs("read"), **SPEC_BODY},
    responses=problems(413, 415, 422),
)
def validate_spec(request: Request, body: RawBody, context: ContextDependency) -> Response:
    """Checks a spec and says what it would take.

    A document that is no spec at all is a 422; a spec that can't run as it is gets 200 with `valid: false`
    and its problems, beside what could be computed.
    """
    return answer(validate(parse_spec(request, body), context.capacity()))

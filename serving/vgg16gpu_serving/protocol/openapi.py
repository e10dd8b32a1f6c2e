"""What /v2/openapi.json tells (OpenAPI 3.1): the paths of this server, and what its model takes and gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from vgg16gpu_serving.protocol import answers
from vgg16gpu_serving.served import Description, Served, Tensor

_ERRORS: Final[Mapping[int, str]] = {
    400: "The request makes no sense.",
    401: "No valid token.",
    404: "No such path, model or version, or memory that clients share.",
    408: "The body came too slowly.",
    413: "Too many bytes, or pictures of too many pixels.",
    415: "Another Content-Type, or a body that is packed.",
    421: "The Host is none of the server's names.",
    429: "Too many images or bodies wait; Retry-After says when to come again.",
    503: "No device process is there, the deadline has passed, or the server ends.",
}
_BINARY: Final = "application/octet-stream"
_TEXT: Final = {"type": "string"}
_COUNT: Final = {"type": "integer", "minimum": 0}
_FLAG: Final = {"type": "boolean"}
_TIMES: Final = {"decode_us": _COUNT, "queue_us": _COUNT, "device_us": _COUNT}
_ANY: Final = {"type": "object"}


def document(served: Served, version: str) -> dict[str, Any]:
    """Return the description. version: of the package."""
    model = f"/v2/models/{served.name}"
    ready = {"/v2/health/live": "Whether the server runs.", "/v2/health/ready": "Whether it takes requests."}
    told = {
        "/v2": "What the server is.",
        "/v2/openapi.json": "This.",
        "/v2/models/stats": "What has been done.",
        **{f"{at}{path}": text for at in (model, f"{model}/versions/1") for path, text in _ABOUT.items()},
    }
    paths: dict[str, Any] = {path: {"get": _get(text, (503,))} for path, text in ready.items()}
    paths |= {path: {"get": {**_get(text, (503,)), **_guarded(served)}} for path, text in told.items()}
    paths["/metrics"] = {"get": {**_get("For Prometheus.", (), "text/plain", _TEXT), **_guarded(served)}}
    known = _responses({"application/json": {"schema": {"type": "array"}}}, (401,))
    paths["/v2/repository/index"] = {"post": {"summary": "The model.", "responses": known, **_guarded(served)}}
    for at in (model, f"{model}/versions/1"):
        paths[f"{at}/infer"] = {"post": {**_asked("Scores of one or several images."), **_guarded(served)}}
    if served.explainable:
        paths["/"] = {"get": {"summary": "The page.", "responses": _responses({"text/html": {"schema": _TEXT}}, ())}}
        for at in (model, f"{model}/versions/1"):
            told_of = {**_get("Which layers and classes can be explained.", ()), **_guarded(served)}
            asked = {**_asked("Feature maps, and the gradient of a class' score."), **_guarded(served)}
            paths[f"{at}/explain"] = {"get": told_of, "post": asked}
    schemes = {"token": {"type": "http", "scheme": "bearer"}} if served.tokens else {}
    return {
        "openapi": "3.1.0",
        "info": {"title": f"vgg16gpu: {served.name}", "version": version},
        "paths": paths,
        "components": {"schemas": _schemas(served), "securitySchemes": schemes},
    }


_ABOUT: Final = {
    "": "What the model takes and gives.",
    "/ready": "Whether it takes requests.",
    "/config": "The same as clients of Triton ask for it.",
    "/stats": "What has been done with it, of all devices and of each.",
}


def _guarded(served: Served) -> dict[str, Any]:
    return {"security": [{"token": []}]} if served.tokens else {}


def _get(
    text: str, errors: Sequence[int], kind: str = "application/json", schema: Mapping[str, Any] = _ANY
) -> dict[str, Any]:
    return {"summary": text, "responses": _responses({kind: {"schema": schema}}, (*errors, 401))}


def _responses(
    content: Mapping[str, Any], errors: Sequence[int], headers: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    refused = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    good = {"description": "The answer.", "content": content, **({"headers": headers} if headers else {})}
    return {"200": good, **{str(each): {"description": _ERRORS[each], "content": refused} for each in sorted(errors)}}


def _asked(summary: str) -> dict[str, Any]:
    length = {"schema": _COUNT, "description": "Bytes of JSON; what follows is binary tensors."}
    answer = {
        "application/json": {"schema": {"$ref": "#/components/schemas/InferResponse"}},
        _BINARY: {"schema": {"type": "string", "format": "binary"}},
    }
    asked = {
        "application/json": {"schema": {"$ref": "#/components/schemas/InferRequest"}},
        _BINARY: {"schema": {"type": "string", "format": "binary"}},
    }
    return {
        "summary": summary,
        "parameters": [{"name": answers.JSON_LENGTH, "in": "header", **length}],
        "requestBody": {"required": True, "content": asked},
        "responses": _responses(answer, tuple(_ERRORS), {answers.JSON_LENGTH: length}),
    }


def _explained(served: Served) -> dict[str, Any]:
    """Return what an explanation may ask for."""
    if served.explainable is None:
        return {}
    layers = {"enum": [layer.name for layer in served.explainable.layers]}
    return {"layer": layers, "maps": {"type": "integer", "minimum": 1}, "class": _COUNT}


def _schemas(served: Served) -> dict[str, Any]:
    description = served.description
    names = [output.name for output in description.outputs]
    asked = _record({"binary_data": _FLAG, "classification": _COUNT}, ())
    wanted = _record({"name": {"enum": names}, "parameters": asked}, ("name",))
    inputs = [_input(name, shape, description) for name, shape in answers.forms(description).items()]
    given = {"type": "array", "minItems": 1, "maxItems": 1, "items": {"oneOf": inputs}}
    request = {
        "id": _TEXT,
        "inputs": given,
        "outputs": {"type": "array", "items": wanted},
        "parameters": _record({"binary_data_output": _FLAG, **_explained(served)}, ()),
    }
    answer = {
        "model_name": _TEXT,
        "model_version": _TEXT,
        "id": _TEXT,
        "parameters": _record({**_TIMES, "batch_size": {"enum": list(description.batches)}}, ()),
        "outputs": {"type": "array", "items": {"oneOf": [_output(output) for output in description.outputs]}},
    }
    return {
        "Error": _record({"error": _TEXT}, ("error",)),
        "InferRequest": _record(request, ("inputs",)),
        "InferResponse": _record(answer, ("model_name", "outputs", "parameters")),
    }


def _input(datatype: str, shape: Sequence[int], description: Description) -> dict[str, Any]:
    images = {"type": "integer", "minimum": 1, "maximum": description.largest}
    item = {"type": "string", "contentEncoding": "base64"} if datatype == "BYTES" else {}
    fields = {
        "name": {"const": description.input.name},
        "datatype": {"const": datatype},
        "shape": _sides([images, *({"const": side} for side in shape)]),
        "data": {"type": "array", "items": item},
        "parameters": _record({"binary_data_size": _COUNT}, ()),
    }
    return _record(fields, ("name", "datatype", "shape"))


def _output(output: Tensor) -> dict[str, Any]:
    fields = {
        "name": {"const": output.name},
        "datatype": {"enum": ["FP32", *(["BYTES"] if len(output.shape) == 1 else [])]},
        "shape": {"type": "array", "items": _COUNT},
        "data": {"type": "array"},
        "parameters": _record({"binary_data_size": _COUNT}, ()),
    }
    return _record(fields, ("name", "datatype", "shape"))


def _sides(sides: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {"type": "array", "prefixItems": list(sides), "minItems": len(sides), "maxItems": len(sides)}


def _record(fields: Mapping[str, Any], required: Sequence[str]) -> dict[str, Any]:
    return {"type": "object", "properties": dict(fields), **({"required": list(required)} if required else {})}
